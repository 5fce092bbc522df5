"""The training function on its way to the workers.

``arguments`` is what it takes, ``serialize`` pickles it and what goes with it, ``unpickling`` loads
that in a worker, ``sources`` keeps its source code with the run.
"""

from __future__ import annotations

__all__: list[str] = []
