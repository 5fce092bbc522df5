"""Where worker processes live. Nothing above this package knows which engine it is on."""

from lockstep.engine.base import Engine, GroupSpec, OutputSink, WorkerGroup, WorkerInfo
from lockstep.engine.registry import choose_engine, close_engines

__all__ = [
    "Engine",
    "GroupSpec",
    "OutputSink",
    "WorkerGroup",
    "WorkerInfo",
    "choose_engine",
    "close_engines",
]
