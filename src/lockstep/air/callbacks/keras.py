"""The Keras callback, under the name of its older AIR module."""

from __future__ import annotations

from lockstep.train.tensorflow.keras import Callback

__all__ = ["Callback"]
