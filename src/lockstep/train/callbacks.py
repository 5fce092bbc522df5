"""Callbacks under the name of their Ray Train module. How they are called is in ``driver``."""

from __future__ import annotations

from lockstep.train.torch.profiler import TorchTensorboardProfilerCallback

__all__ = ["TorchTensorboardProfilerCallback"]
