"""Scripts for Ray of today, with their imports changed and nothing else."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import train, tune
from lockstep.errors import InsufficientResourcesError
from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from tests.integration.runs import fit, run_script


@pytest.fixture
def forget_init() -> Iterator[None]:
    yield
    lockstep.shutdown()


def test_a_whole_script_under_the_old_name(tmp_path: Path) -> None:
    """One import is changed; what is used of it is found when it is used, in workers, too."""
    done = run_script(
        tmp_path,
        """
        import lockstep as ray
        from lockstep.train import FailureConfig, RunConfig, ScalingConfig
        from lockstep.train.torch import TorchTrainer

        if not ray.is_initialized():
            ray.init(ignore_reinit_error=True, runtime_env={"env_vars": {"API_KEY": "yours"}})

        def train_func(config):
            import os
            import torch

            model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))
            rows = 0
            for batch in ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=4):
                rows += len(batch["id"])
                model(batch["id"].float()[:, None]).sum().backward()
            context = ray.train.get_context()
            ray.train.report({"rows": rows, "key": os.environ["API_KEY"], "lr": config["lr"]})
            if context.get_world_rank() == 0:
                print("logged as", context.get_trial_id())

        trainer = TorchTrainer(
            train_func,
            datasets={"train": ray.data.range(16)},
            scaling_config=ScalingConfig(num_workers=2, placement_strategy="PACK"),
            run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
        )
        tuner = ray.tune.Tuner(
            trainer,
            param_space={"train_loop_config": {"lr": ray.tune.grid_search([1, 2])}},
            tune_config=ray.tune.TuneConfig(metric="lr", mode="max"),
        )
        best = tuner.fit().get_best_result()
        print(best.metrics["rows"], best.metrics["key"], best.config["train_loop_config"])
        ray.shutdown()
        """,
    )
    assert done.stdout.splitlines()[-1] == "8 yours {'lr': 2}"
    assert done.stdout.count("logged as") == 2


def test_init_says_what_it_does_not_do(forget_init: None) -> None:
    assert not lockstep.is_initialized()
    lockstep.init(ignore_reinit_error=True, include_dashboard=False, log_to_driver=True)
    lockstep.init("local", num_cpus=2)
    assert lockstep.is_initialized()
    with pytest.warns(UserWarning, match=r"init\(address='auto'\) does nothing: there is no cl"):
        lockstep.init(address="auto")
    with pytest.warns(UserWarning, match=r"log_to_driver=False\) .* RunConfig\(verbose=0\)"):
        lockstep.init(log_to_driver=False)
    with pytest.warns(UserWarning, match=r"local_mode=True\) .* ScalingConfig\(num_workers=0\)"):
        lockstep.init(local_mode=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_cpu'"):
        lockstep.init(num_cpu=2)
    lockstep.shutdown()
    assert not lockstep.is_initialized()


@pytest.mark.parametrize("name", ["remote", "kill", "get_actor"])
def test_there_are_no_actors(name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"'lockstep' has no attribute '{name}': tasks and actors are Ray's"
    ):
        getattr(lockstep, name)


def test_a_scaling_config_for_a_cluster() -> None:
    plain = ScalingConfig(num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = ScalingConfig(num_workers=2, trainer_resources={"CPU": 0}, placement_strategy="PACK")
    assert same == plain == replace(same)
    for given in (
        {"trainer_resources": {"CPU": 4}},
        {"use_tpu": True},
        {"_max_cpu_fraction_per_node": 0.8},
    ):
        (name,) = given
        with pytest.warns(UserWarning, match=rf"ScalingConfig\({name}=.*\) does nothing: ") as told:
            assert ScalingConfig(num_workers=2, **given) == plain
        assert told[0].filename == __file__


def test_a_placement_does_nothing_on_one_machine() -> None:
    placed = ScalingConfig(
        placement_strategy="SPREAD", accelerator_type="A100", label_selector={"zone": "a"}
    )
    payload = DataParallelTrainer(lambda: None, scaling_config=placed).payload()
    for argument in (
        "placement_strategy='SPREAD'",
        "accelerator_type='A100'",
        "label_selector=[{'zone': 'a'}]",
    ):
        text = f"ScalingConfig({argument}) does nothing: all workers are on this machine"
        assert any(warning.startswith(text) for warning in payload.warnings)
    unknown = ScalingConfig(resources_per_worker={"fast_disk": 1})
    with pytest.raises(InsufficientResourcesError, match=r"'fast_disk': 1}\): this machine has"):
        DataParallelTrainer(lambda: None, scaling_config=unknown).payload()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"placement_strategy": "NEAR"}, "choose one of PACK, SPREAD, STRICT_PACK"),
        ({"accelerator_type": 100}, "expected a name, such as 'A100'"),
        ({"label_selector": {"zone": 1}}, "expected a dict of labels"),
        ({"label_selector": [{"a": "b"}, {"a": "c"}]}, "one dict for each worker"),
    ],
)
def test_a_placement_that_is_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ScalingConfig(num_workers=3, **given)


def test_a_trainer_as_a_trainable() -> None:
    trainer = DataParallelTrainer(
        lambda config: train.report({"lr": config["lr"]}), run_config=RunConfig(verbose=0)
    )
    space = {"train_loop_config": {"lr": tune.grid_search([1, 2])}}
    analysis = tune.run(trainer.as_trainable(), config=space, verbose=0)
    assert sorted(row["lr"] for row in analysis.results.values()) == [1, 2]


def look() -> None:
    train.report({name: os.environ.get(name) for name in ("OF_ALL", "OF_THIS")})


def test_variables_of_one_run(forget_init: None) -> None:
    lockstep.init(runtime_env={"env_vars": {"OF_ALL": "1", "OF_THIS": "no"}})
    own = {"env_vars": {"OF_THIS": "2"}}
    expected = {"OF_ALL": "1", "OF_THIS": "2"}
    for workers in (0, 1):
        result = fit(look, workers=workers, worker_runtime_env=own)
        assert result.reported_metrics == expected
    assert "OF_THIS" not in os.environ
    (trial,) = tune.Tuner(look, run_config=RunConfig(verbose=0, worker_runtime_env=own)).fit()
    assert trial.reported_metrics == expected
    with pytest.raises(ValueError, match=r"RunConfig\(worker_runtime_env=\{'pip': …\}\): only"):
        RunConfig(worker_runtime_env={"pip": ["x"]})


def test_reported_checkpoints_have_names() -> None:
    def function() -> None:
        train.report({"n": 1}, checkpoint=Checkpoint.from_dict({"n": 1}))
        (known,) = train.get_all_reported_checkpoints()
        assert isinstance(known, train.ReportedCheckpoint)
        train.report({"n": known.metrics["n"], "kept": known.checkpoint.to_dict()["n"]})

    result = DataParallelTrainer(function, run_config=RunConfig(verbose=0)).fit()
    assert result.reported_metrics == {"n": 1, "kept": 1}
