"""Helpers for training code, as in Ray Tune."""

from __future__ import annotations

from lockstep.tune.utils.util import flatten_dict, validate_save_restore, wait_for_gpu

__all__ = ["flatten_dict", "validate_save_restore", "wait_for_gpu"]
