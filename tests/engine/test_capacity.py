"""How many workers fit on this machine, and who hears when that changes."""

from __future__ import annotations

import contextlib
import threading
from functools import partial

import pytest

import lockstep
from lockstep import runtime
from lockstep.engine.base import GroupSpec
from lockstep.engine.local import LocalEngine
from lockstep.engine.loop import EventLoop
from lockstep.engine.resources import available_cpus


@pytest.fixture(autouse=True)
def _own_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_configured", None)


def spec(cpus: float | None = None, gpus: int = 0) -> GroupSpec:
    return GroupSpec(1, "module:function", b"", cpus_per_worker=cpus, gpus_per_worker=gpus)


def test_by_default_what_the_machine_has() -> None:
    assert LocalEngine().capacity(spec()) == available_cpus()


@pytest.mark.parametrize(("cpus", "room"), [(None, 5), (1.0, 5), (2.0, 2), (0.5, 10), (6.0, 0)])
def test_what_init_says(cpus: float | None, room: int) -> None:
    lockstep.init(num_cpus=5)
    assert LocalEngine().capacity(spec(cpus)) == room


def test_no_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    lockstep.init(num_cpus=5, num_gpus=4)
    assert LocalEngine().capacity(spec(gpus=1)) == 0


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_what_init_does_not_take(count: object) -> None:
    with pytest.raises(ValueError, match=r"init\(num_cpus=.*an integer"):
        lockstep.init(num_cpus=count)  # type: ignore[arg-type]


def test_a_change_from_another_thread_is_heard_on_the_loop() -> None:
    heard: list[tuple[int, int]] = []
    engine = LocalEngine()
    with contextlib.closing(EventLoop()) as loop:
        cancel = engine.watch_capacity(
            loop, lambda: heard.append((engine.capacity(spec()), threading.get_ident()))
        )
        for count in (3, 4):
            thread = threading.Thread(target=partial(lockstep.init, num_cpus=count))
            thread.start()
            while not heard or heard[-1][0] != count:
                loop.run_once()
            thread.join()
        cancel()
        lockstep.init(num_cpus=5)
        loop.call_soon(lambda: None)
        loop.run_once()
    assert heard == [(3, threading.get_ident()), (4, threading.get_ident())]
