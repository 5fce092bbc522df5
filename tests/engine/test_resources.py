"""CPUs and GPUs: what is there and which worker sees what."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable

import pytest

from lockstep.engine import GroupSpec, resources
from lockstep.engine.resources import (
    available_cpus,
    check_fits,
    room_for,
    server_environment,
    visible_gpus,
    worker_environment,
)
from lockstep.errors import InsufficientResourcesError


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Pretend that this machine has a number of device files."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def pretend(count: int) -> None:
        names = [f"/dev/nvidia{index}" for index in range(count)]
        monkeypatch.setattr(glob, "glob", lambda pattern: names)

    return pretend


@pytest.fixture(autouse=True)
def no_thread_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def spec(
    size: int = 1, cpus: float | None = None, gpus: float = 0, **environment: str
) -> GroupSpec:
    return GroupSpec(
        size=size,
        entry="unused:unused",
        payload=b"",
        environment=environment,
        cpus_per_worker=cpus,
        gpus_per_worker=gpus,
    )


def test_available_cpus_follows_affinity() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no CPU affinity")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert available_cpus() == len(before)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("", []),
        ("-1", []),
        ("2", ["2"]),
        ("1, 0", ["1", "0"]),
        ("0,-1,1", ["0"]),
        ("0,7,1", ["0"]),
        ("GPU-5fd4,GPU-aa01", ["GPU-5fd4", "GPU-aa01"]),
    ],
)
def test_visible_gpus(
    gpus: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    chosen: str | None,
    expected: list[str],
) -> None:
    gpus(3)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert visible_gpus() == expected


def test_no_device_file_no_gpu(
    gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(0)
    assert visible_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert visible_gpus() == []


def test_gpus_are_split_between_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "visible_gpus", lambda environment: ["4", "5", "6", "7"])
    group = spec(size=2, gpus=2)
    assert check_fits(group) == [] or available_cpus() < 2
    seen = [worker_environment(group, rank)["CUDA_VISIBLE_DEVICES"] for rank in range(2)]
    assert seen == ["4,5", "6,7"]


def test_workers_without_gpus_keep_the_drivers_setting(gpus: Callable[[int], None]) -> None:
    gpus(2)
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment(spec(), 0)


def test_the_users_environment_chooses_gpus(gpus: Callable[[int], None]) -> None:
    gpus(4)
    group = spec(size=2, gpus=1, CUDA_VISIBLE_DEVICES="3,2")
    seen = [worker_environment(group, rank)["CUDA_VISIBLE_DEVICES"] for rank in range(2)]
    assert seen == ["3", "2"]
    with pytest.raises(InsufficientResourcesError):
        check_fits(spec(size=2, gpus=2, CUDA_VISIBLE_DEVICES="3,2"))


@pytest.mark.parametrize(
    ("size", "each", "seen"),
    [
        (4, 0.5, ["0", "0", "1", "1"]),
        (3, 0.5, ["0", "0", "1"]),
        (6, 1 / 3, ["0"] * 3 + ["1"] * 3),
        (4, 0.4, ["0", "0", "1", "1"]),
        (2, 0.6, ["0", "1"]),
        (2, 1.0, ["0", "1"]),
    ],
)
def test_workers_share_gpus(
    gpus: Callable[[int], None], size: int, each: float, seen: list[str]
) -> None:
    gpus(2)
    group = spec(size=size, gpus=each, cpus=0.001)
    check_fits(group)
    assert [worker_environment(group, r)["CUDA_VISIBLE_DEVICES"] for r in range(size)] == seen
    assert room_for(group) == 2 * seen.count("0")  # CPUs are no limit here
    with pytest.raises(InsufficientResourcesError, match=r"with \S+ GPU\(s\) each need 3, but"):
        check_fits(spec(size=2 * seen.count("0") + 1, gpus=each))


def test_too_few_gpus_is_an_error_that_says_so(gpus: Callable[[int], None]) -> None:
    gpus(1)
    with pytest.raises(InsufficientResourcesError, match=r"2 worker.*1 GPU.*need 2.*has 1"):
        check_fits(spec(size=2, gpus=1))
    check_fits(spec(size=1, gpus=1))


def test_more_workers_than_cpus_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_cpus", lambda: 4)
    assert check_fits(spec(size=4)) == []
    (warning,) = check_fits(spec(size=5))
    assert "5 workers share 4 CPU(s)" in warning
    assert "num_workers" in warning


@pytest.mark.parametrize(
    ("size", "cpus", "threads"),
    [(1, None, "8"), (2, None, "4"), (3, None, "2"), (20, None, "1"), (4, 3, "3"), (4, 0.5, "1")],
)
def test_threads_are_a_fair_share(
    monkeypatch: pytest.MonkeyPatch, size: int, cpus: float | None, threads: str
) -> None:
    monkeypatch.setattr(resources, "available_cpus", lambda: 8)
    assert worker_environment(spec(size, cpus), 0)["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_the_users_thread_count_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    given = worker_environment(spec(2, None, 0, **{name: "3"}), 0)
    assert given == {name: "3"}
    assert server_environment(spec(2, None, 0, **{name: "3"})) == {**os.environ, name: "3"}
    monkeypatch.setenv(name, "5")
    assert worker_environment(spec(), 0) == {}
    assert server_environment(spec()) == dict(os.environ)
