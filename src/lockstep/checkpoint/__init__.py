"""A checkpoint somewhere, and how values are kept in files.

``plain`` writes a dict as data, which is read without executing anything; ``pickled`` is for dicts
that are not plain. ``returned`` keeps what a training function returned in the same ways.
"""

from lockstep.checkpoint.checkpoint import PREPROCESSOR_KEY, Checkpoint

__all__ = ["PREPROCESSOR_KEY", "Checkpoint"]
