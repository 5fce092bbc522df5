"""Trainers whose frameworks are not installed here: what they say, and what needs none of them."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lockstep.engine import GroupSpec
from lockstep.train import ScalingConfig
from lockstep.train.backend import Place, Wiring, machine_gpus, without_unasked_gpus
from lockstep.train.context import TrainContext
from lockstep.train.horovod import HorovodConfig, HorovodTrainer
from lockstep.train.horovod.backend import HorovodBackend, Layout
from lockstep.train.tensorflow import TensorflowConfig, TensorflowTrainer
from lockstep.train.tensorflow.keras import ReportCheckpointCallback


def function() -> None:
    pass


def test_tensorflow() -> None:
    for make in (lambda: TensorflowTrainer(function), TensorflowConfig().make_backend):
        with pytest.raises(ImportError, match=r"pip install 'lockstep-train\[tensorflow\]'"):
            make()
    with pytest.raises(ImportError, match="ReportCheckpointCallback needs TensorFlow"):
        ReportCheckpointCallback()


def test_horovod() -> None:
    for make in (lambda: HorovodTrainer(function), HorovodConfig().make_backend):
        with pytest.raises(
            ImportError, match=r"lockstep-train\[horovod\].*scripts/install_horovod\.py"
        ):
            make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nics": "eth0"}, r"nics='eth0'\): expected names"),
        ({"nics": []}, r"nics=\[\]\): expected names"),
        ({"verbose": 9}, r"verbose=9\): expected a number from 0"),
        ({"verbose": True}, r"verbose=True\): expected a number from 0"),
        ({"timeout_s": 0}, r"timeout_s=0\): expected seconds"),
        ({"ssh_port": 22}, r"ssh_port=…\) is for launchers"),
        ({"key": "k"}, r"key=…\) is for launchers"),
    ],
)
def test_horovods_config_is_checked_when_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HorovodConfig(**arguments)


def test_who_shares_a_machine() -> None:
    """Three machines with two workers, one and two; ranks in the order workers started."""
    layout = Layout(["a", "b", "a", "c", "c"])
    assert [layout.local_rank(rank) for rank in range(5)] == [0, 0, 1, 0, 1]
    assert [layout.local_size(rank) for rank in range(5)] == [2, 1, 2, 2, 2]
    assert [layout.cross_rank(rank) for rank in range(5)] == [0, 1, 0, 2, 1]
    assert [layout.cross_size(local) for local in (0, 1)] == [3, 2]
    assert layout.scope_sizes() == {
        "global": 5,
        "local_a": 2,
        "local_b": 1,
        "local_c": 2,
        "cross_0": 3,
        "cross_1": 2,
    }


def test_gpus_that_a_run_did_not_ask_for_are_hidden() -> None:
    spec = GroupSpec(size=2, entry="", payload=b"", environment={"A": "1"})
    hidden = without_unasked_gpus(spec, ScalingConfig(num_workers=2))
    assert hidden.environment == {"A": "1", "CUDA_VISIBLE_DEVICES": ""}
    for asked in (ScalingConfig(num_workers=2, use_gpu=True), ScalingConfig(num_workers=0)):
        assert without_unasked_gpus(spec, asked) is spec


@pytest.mark.parametrize(
    ("rank", "use_gpu", "seen"),
    [(0, True, "4,5"), (1, True, "4,5"), (2, True, "7"), (1, False, "5")],
)
def test_horovods_local_rank_is_the_index_of_a_gpu(
    rank: int, use_gpu: bool, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = (Place("a", 1, "4"), Place("a", None, "5"), Place("b", None, "7"))
    own = {**os.environ, "CUDA_VISIBLE_DEVICES": places[rank].gpus or ""}
    monkeypatch.setattr(os, "environ", own)
    context = TrainContext(world_rank=rank, world_size=3)
    backend = HorovodBackend((), (), "warning", 300)
    backend.setup(Wiring(context, places, "a", use_gpu))
    assert own["CUDA_VISIBLE_DEVICES"] == seen
    assert own["HOROVOD_LOCAL_RANK"] == ["0", "1", "0"][rank]


def test_the_gpus_of_a_machine() -> None:
    places = [Place("a", 1, "4,6"), Place("b", gpus="0"), Place("a", gpus="5,7"), Place("c")]
    assert machine_gpus(places, 0) == (["4", "6", "5", "7"], [0, 1])
    assert machine_gpus(places, 1) == (["0"], [0])
    assert machine_gpus(places, 2) == (["4", "6", "5", "7"], [2, 3])
    assert machine_gpus(places, 3) == ([], [])
    assert machine_gpus([Place("a", gpus="3"), Place("a", gpus="3")], 1) == (["3"], [0])
    assert machine_gpus([Place("a", gpus="MIG-1"), Place("a", gpus="MIG-2")], 1) == ([], [])
