"""TorchWorkerProfiler: traces are in the run directory."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from lockstep import train
from lockstep.train.callbacks import TorchTensorboardProfilerCallback
from lockstep.train.torch import TorchWorkerProfiler
from tests.storage.test_storage import run_python
from tests.train.torch.ranks import fit


def test_traces_of_every_rank_are_kept_with_the_run() -> None:
    def function() -> None:
        profiler = TorchWorkerProfiler()
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=0, active=1),
            on_trace_ready=profiler.trace_handler,
        ) as running:
            for _ in range(2):
                torch.ones(2).sum()
                running.step()
                train.report(profiler.get_and_clear_profile_traces())

    callback = TorchTensorboardProfilerCallback()
    result = fit(function, 2, callbacks=[callback])
    assert callback.logdir == Path(result.path, "pytorch_profiler")
    names = sorted(path.name for path in callback.logdir.iterdir())
    assert {f"worker_{rank}_epoch_{n}.pt.trace.json" for rank in (0, 1) for n in (1, 2)} <= {*names}
    assert json.loads((callback.logdir / names[0]).read_text())["traceEvents"]
    assert result.metrics["profiler_traces"] == ["worker_0_epoch_2.pt.trace.json"]


def test_profiles_without_steps_do_not_replace_each_other() -> None:
    def function() -> None:
        for _ in range(2):
            profiler = TorchWorkerProfiler()
            with profile(activities=[ProfilerActivity.CPU], on_trace_ready=profiler.trace_handler):
                torch.ones(2).sum()
            train.report(profiler.get_and_clear_profile_traces())

    result = fit(function, 1)
    names = ["worker_0_epoch_0.pt.trace.json", "worker_0_epoch_0_2.pt.trace.json"]
    assert sorted(p.name for p in Path(result.path, "pytorch_profiler").iterdir()) == names
    assert list(result.metrics_dataframe["profiler_traces"]) == [[name] for name in names]


def test_outside_a_run_it_needs_a_directory(tmp_path: Path) -> None:
    """In a process of its own: on a machine with GPUs the profiler opens them, and keeps them."""
    code = """
        import os, sys, pytest, torch
        from lockstep.train.torch import TorchWorkerProfiler

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as done:
            torch.ones(2).sum()
        with pytest.raises(RuntimeError, match="give it a trace_dir"):
            TorchWorkerProfiler().trace_handler(done)
        kept = TorchWorkerProfiler(sys.argv[1])
        kept.trace_handler(done)
        [name] = kept.get_and_clear_profile_traces()["profiler_traces"]
        assert os.listdir(sys.argv[1]) == [name]
        assert kept.get_and_clear_profile_traces() == {"profiler_traces": []}
    """
    run_python(code, str(tmp_path / "traces"), check=True)
