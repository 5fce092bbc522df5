"""Callbacks under Ray Train's module name. ``train/driver`` calls them."""

from __future__ import annotations

from lockstep.train.torch.profiler import TorchTensorboardProfilerCallback

__all__ = ["TorchTensorboardProfilerCallback"]
