"""What scripts written for Ray rely on besides names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.data.expressions import col
from lockstep.train import (
    Checkpoint,
    CheckpointConfig,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    report,
)
from tests.integration.porting.test_as_ray import run_as_ray
from tests.integration.runs import trainer


def test_configs_can_be_changed_before_use() -> None:
    scaling = ScalingConfig(num_workers=2)
    scaling.num_workers = (1, 3)
    assert (scaling.min_workers, scaling.max_workers, scaling.elasticity_enabled) == (1, 3, True)
    with pytest.raises(ValueError, match=r"num_workers=\(3, 1\)\): min is above max"):
        scaling.num_workers = (3, 1)
    assert scaling.num_workers == (1, 3)
    with pytest.raises(AttributeError, match="ScalingConfig has no field 'workers'; it has num_w"):
        scaling.workers = 4
    run_config = RunConfig(verbose=0)
    run_config.failure_config = FailureConfig(max_failures=1)
    run_config.checkpoint_config = CheckpointConfig()
    run_config.checkpoint_config.num_to_keep = 1
    assert hash(FailureConfig(1)) == hash(run_config.failure_config)

    def function() -> None:
        for step in range(3):
            report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    changed = trainer(function, workers=1)
    changed.run_config.checkpoint_config = run_config.checkpoint_config
    assert len(changed.fit().best_checkpoints) == 1


def test_total_resources() -> None:
    assert ScalingConfig(num_workers=3).total_resources == {"CPU": 3}
    own = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 2, "disk": 1})
    assert own.total_resources == {"CPU": 4, "disk": 2}
    assert own.additional_resources_per_worker == {"disk": 1}
    assert ScalingConfig(num_workers=2, use_gpu=True).total_resources == {"GPU": 2}


def test_checkpoints_as_bytes_and_uris(tmp_path: Path) -> None:
    of_dict = Checkpoint.from_dict({"a": 1})
    assert Checkpoint.from_bytes(of_dict.to_bytes()).to_dict() == {"a": 1}
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "model").write_bytes(b"weights")
    again = Checkpoint.from_bytes(Checkpoint(tmp_path / "files").to_bytes())
    assert os.listdir(again.to_directory(tmp_path / "copy")) == ["model"]
    uri = again.to_uri((tmp_path / "stored").as_uri())
    with Checkpoint.from_uri(uri).as_directory() as directory:
        assert Path(directory, "model").read_bytes() == b"weights"
    with pytest.raises(ValueError, match="these bytes are not from to_bytes"):
        Checkpoint.from_bytes(b"no checkpoint")


def test_functions_of_the_time_before_get_checkpoint(tmp_path: Path) -> None:
    def function(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        assert tune.is_session_enabled()
        start = 0
        if checkpoint_dir is not None:
            start = int(Path(checkpoint_dir, "step").read_text()) + 1
        for step in range(start, 4):
            with tune.checkpoint_dir(step=step) as directory:
                Path(directory, "step").write_text(str(step))
            tune.report(step=step, start=start)
            if step == 1:
                raise ConnectionError("lost")

    analysis = tune.run(
        function, verbose=0, max_failures=1, metric="step", mode="max", storage_path=tmp_path
    )
    assert analysis.best_result["step"] == 3
    assert analysis.best_result["start"] == 2
    assert analysis.get_last_checkpoint() is not None
    (trial_id,) = analysis.best_result_df.index
    assert trial_id == analysis.best_trial.trial_id
    assert not tune.is_session_enabled()


def test_several_columns_at_once() -> None:
    import lockstep.data

    dataset = lockstep.data.range(2).copy().lazy()
    assert dataset.with_columns({"b": col("id") + 1, "c": col("b") * 2}).take() == [
        {"id": 0, "b": 1, "c": 2},
        {"id": 1, "b": 2, "c": 4},
    ]
    assert isinstance(dataset.schema(), lockstep.data.Schema)


def test_ray_s_files_for_single_classes(tmp_path: Path) -> None:
    out = run_as_ray(
        tmp_path,
        """
        from ray.data import DatasetContext, DatasetIterator, Preprocessor
        from ray.data.preprocessors.scaler import StandardScaler
        from ray.exceptions import RayError, RayTaskError
        from ray.train._internal.session import get_world_rank
        from ray.tune.analysis.experiment_analysis import ExperimentAnalysis
        from ray.tune.stopper.trial_plateau import TrialPlateauStopper
        from ray.tune.trainable.trainable import Trainable
        print(issubclass(StandardScaler, Preprocessor), TrialPlateauStopper.__module__)
        """,
    )
    assert out == "True lockstep.tune.stopper\n"
