"""What training code for Ray Tune uses besides reporting."""

from __future__ import annotations

from lockstep.tune.utils.util import flatten_dict, validate_save_restore, wait_for_gpu

__all__ = ["flatten_dict", "validate_save_restore", "wait_for_gpu"]
