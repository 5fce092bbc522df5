"""Facts of this machine under Ray's names, and values by reference."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator

import pytest

import lockstep
from lockstep import train, tune
from lockstep.train import RunConfig
from lockstep.util import get_node_ip_address, log_once
from tests.integration.runs import fit


@pytest.fixture(autouse=True)
def forget_init() -> Iterator[None]:
    yield
    if lockstep.is_initialized():
        lockstep.shutdown()


def test_values_by_reference() -> None:
    value = {"a": [1, 2]}
    first, second = lockstep.put(value), lockstep.put(2)
    assert isinstance(first, lockstep.ObjectRef)
    assert lockstep.get(first) is value
    assert lockstep.get([first, second], timeout=1) == [value, 2]
    assert lockstep.wait([first, second]) == ([first], [second])
    assert lockstep.wait([first, second], num_returns=2) == ([first, second], [])
    assert lockstep.get(pickle.loads(pickle.dumps(first))) == value
    with pytest.raises(ValueError, match=r"get\(int\): expected an ObjectRef"):
        lockstep.get(5)
    with pytest.raises(TypeError, match="is a reference already"):
        lockstep.put(first)
    with pytest.raises(ValueError, match=r"num_returns=3\): expected 1 to 2"):
        lockstep.wait([first, second], num_returns=3)
    with pytest.raises(TypeError, match="expected a list of ObjectRefs"):
        lockstep.wait([1])


def test_references_reach_workers() -> None:
    reference = lockstep.put(list(range(5)))

    def function(config: dict[str, object]) -> None:
        train.report({"total": sum(lockstep.get(config["numbers"]))})

    assert fit(function, config={"numbers": reference}).metrics["total"] == 10
    trainable = tune.with_parameters(
        lambda config, numbers: {"total": sum(lockstep.get(numbers))}, numbers=reference
    )
    (trial,) = tune.Tuner(trainable, run_config=RunConfig(verbose=0)).fit()
    assert trial.metrics is not None
    assert trial.metrics["total"] == 10


def test_facts_of_this_machine() -> None:
    cpus = len(os.sched_getaffinity(0))
    assert lockstep.cluster_resources()["CPU"] == cpus
    assert lockstep.available_resources() == lockstep.cluster_resources()
    with lockstep.init(num_cpus=3, num_gpus=0) as context:
        assert lockstep.cluster_resources()["CPU"] == 3
        assert "GPU" not in lockstep.cluster_resources()
        assert context["node_ip_address"] == context.address_info["node_ip_address"]
    assert not lockstep.is_initialized()
    (node,) = lockstep.nodes()
    here = lockstep.get_runtime_context()
    assert node["Alive"]
    assert node["NodeID"] == here.get_node_id() == here.node_id
    assert node["NodeManagerAddress"] == get_node_ip_address()
    assert node["Resources"]["CPU"] == here.get_assigned_resources()["CPU"] == cpus
    assert here.get_actor_id() is None
    assert isinstance(lockstep.get_gpu_ids(), list)


def test_variables_of_workers_as_a_runtime_env() -> None:
    env = lockstep.runtime_env.RuntimeEnv(env_vars={"A": "1"})
    lockstep.init(runtime_env=env)
    assert lockstep.get_runtime_context().runtime_env == {"env_vars": {"A": "1"}}
    with pytest.raises(ValueError, match="only 'env_vars' is supported"):
        lockstep.init(runtime_env=lockstep.runtime_env.RuntimeEnv(pip=["x"]))


def test_log_once() -> None:
    assert [log_once("a"), log_once("b"), log_once("a")] == [True, True, False]


def test_annotations_return_what_they_mark() -> None:
    from lockstep.util.annotations import Deprecated, DeveloperAPI, PublicAPI

    assert PublicAPI(int) is DeveloperAPI(int) is int
    assert Deprecated(message="old")(int) is PublicAPI(stability="beta")(int) is int


def test_what_is_ray_s_says_so() -> None:
    with pytest.raises(ImportError, match=r"lockstep\.util\.ActorPool does not exist: tasks and"):
        from lockstep.util import ActorPool  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'kill': tasks and actors are Ray's"):
        lockstep.kill  # noqa: B018
