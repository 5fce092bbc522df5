"""Traces of ``torch.profiler``, stored in the run directory's ``pytorch_profiler/``."""

from __future__ import annotations

import tempfile
import weakref
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.callback import Callback, TrialSnapshot
from lockstep.run_layout import TRACE_DIRECTORY
from lockstep.train.worker import session as sessions

if TYPE_CHECKING:
    import torch

__all__ = ["TorchTensorboardProfilerCallback", "TorchWorkerProfiler"]

_kept: weakref.WeakKeyDictionary[sessions.Session, Counter[str]] = weakref.WeakKeyDictionary()
"""How many traces of each name this run has. A profile without steps always has step 0."""


class TorchWorkerProfiler:
    """Stores this worker's traces: ``torch.profiler.profile(on_trace_ready=p.trace_handler)``.

    Args:
        trace_dir: where to store them; by default in the run directory.
    """

    def __init__(self, trace_dir: str | None = None) -> None:
        self._trace_dir = trace_dir
        self._names: list[str] = []
        self._outside: Counter[str] = Counter()

    def trace_handler(self, profile: torch.profiler.profile) -> None:
        """Store the trace that the profiler has ready."""
        session = sessions.current()
        rank = 0 if session is None else session.context.world_rank
        stem = f"worker_{rank}_epoch_{profile.step_num}"
        kept = self._outside if session is None else _kept.setdefault(session, Counter())
        kept[stem] += 1
        again = "" if kept[stem] == 1 else f"_{kept[stem]}"
        name = f"{stem}{again}.pt.trace.json"
        if self._trace_dir is not None:
            Path(self._trace_dir).mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(Path(self._trace_dir, name)))
        elif session is None:
            raise RuntimeError(
                "TorchWorkerProfiler stores traces with a run, and outside a training function "
                "there is none; give it a trace_dir."
            )
        else:
            with tempfile.TemporaryDirectory() as directory:
                trace = str(Path(directory, name))
                profile.export_chrome_trace(trace)
                session.keep_file(f"{TRACE_DIRECTORY}/{name}", trace)
        self._names.append(name)

    def get_and_clear_profile_traces(self) -> dict[str, Any]:
        """Return the names of the traces since the last call, as a metric to report."""
        names, self._names = self._names, []
        return {"profiler_traces": names}


class TorchTensorboardProfilerCallback(Callback):
    """Knows where a run's traces are: ``logdir``. The workers write them there themselves."""

    def __init__(self) -> None:
        self.logdir: Path | None = None

    def on_trial_start(
        self, iteration: int, trials: Any, trial: TrialSnapshot, **info: Any
    ) -> None:
        """Record the run directory."""
        self.logdir = Path(trial.path, TRACE_DIRECTORY)
