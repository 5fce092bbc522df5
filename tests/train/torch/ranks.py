"""Helpers for the tests of the torch helpers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from lockstep.engine.base import Channel
from lockstep.storage import open_storage
from lockstep.train import Result, RunConfig, ScalingConfig
from lockstep.train.backend import Backend
from lockstep.train.context import TrainContext
from lockstep.train.torch import TorchTrainer
from lockstep.train.torch.backend import TorchBackend
from lockstep.train.worker import session as sessions


@contextmanager
def as_rank(rank: int = 0, size: int = 1) -> Iterator[None]:
    """Make this process a rank of a run, for helpers that only need the ranks."""
    context = TrainContext(world_rank=rank, world_size=size)
    session = sessions.Session(
        cast(Channel, None), context, open_storage(Path.cwd()), None, None, []
    )
    before = sessions.current()
    sessions.activate(session)
    try:
        yield
    finally:
        sessions.activate(before)


def in_a_worker(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a worker, because it computes gradients or steps an optimizer.

    On a machine with GPUs the first of these in a process opens all of them, also if everything is
    on the CPU. They stay open, which would count as a leak.
    """

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        fit(functools.partial(test, **arguments), 1)

    return run


@contextmanager
def forked_with(*modules: str, backend: type[Backend] = TorchBackend) -> Iterator[None]:
    """Workers are forked with these modules, as those of a TorchTrainer are with torch.

    For tests that are not about an import which takes seconds in every worker.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "preload", (*backend.preload, "torch._dynamo", *modules))
        yield


def fit(
    function: Callable[..., Any],
    workers: int = 2,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Run the function with a TorchTrainer, without output."""
    return TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, callbacks=options.pop("callbacks", None)),
        **options,
    ).fit()
