"""The snippets of the pages the API comes from, as they stand there but for their imports.

Where a page leaves something out (a model, a tracker), the smallest thing that does is put in.
"""
# The pages annotate nothing, and spell types as they were spelt then.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: C408, UP006, UP035

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, List

import pytest

import lockstep


@pytest.fixture(autouse=True)
def forget_init() -> Iterator[None]:
    """``init()`` is for a whole process; the next test wants its own."""
    yield
    from lockstep import runtime

    if runtime.current().env_vars:
        lockstep.shutdown()


# ----------------------------------------------------------------------- the 2.0 user guide (004)


def test_configuring_training():
    """Lines 301 to 315, and the same on the key concepts page (003, lines 32 to 46)."""
    from lockstep.air import ScalingConfig, session
    from lockstep.train.torch import TorchTrainer

    def train_func(config):
        for i in range(config["num_epochs"]):
            session.report({"epoch": i})

    trainer = TorchTrainer(
        train_func,
        train_loop_config={"num_epochs": 2},
        scaling_config=ScalingConfig(num_workers=2),
    )
    result = trainer.fit()

    # The page prints a key that was never reported; the value it shows is the last epoch's.
    assert result.metrics["epoch"] == 1
    assert "num_epochs" not in result.metrics
    assert result.log_dir.parent.name.startswith("TorchTrainer_")


def test_porting_a_function():
    """Lines 66 to 124: with the two utilities, and, as the note there says, without them."""
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from lockstep import train
    from lockstep.air import ScalingConfig
    from lockstep.train.torch import TorchConfig, TorchTrainer

    worker_batch_size = 5

    def train_func():
        torch.manual_seed(0)
        my_dataset = TensorDataset(torch.randn(40, 4), torch.randint(3, (40,)))
        by_hand = DistributedDataParallel(torch.nn.Linear(4, 3))
        model = train.torch.prepare_model(torch.nn.Linear(4, 3))
        model.load_state_dict(by_hand.state_dict())
        sampler: Any = DistributedSampler(my_dataset, shuffle=False)
        loader_by_hand = DataLoader(my_dataset, batch_size=worker_batch_size, sampler=sampler)
        data_loader = DataLoader(my_dataset, batch_size=worker_batch_size)
        data_loader = train.torch.prepare_data_loader(data_loader)
        for (X, y), (same_X, same_y) in zip(data_loader, loader_by_hand, strict=True):
            assert torch.equal(X, same_X)
            assert torch.equal(y, same_y)
            torch.nn.functional.cross_entropy(model(X), y).backward()
            torch.nn.functional.cross_entropy(by_hand(X), y).backward()
        gradients: Any = [next(each.parameters()).grad for each in (model, by_hand)]
        assert torch.equal(*gradients)
        train.report(
            {
                "kind": type(model).__name__,
                "batches": len(data_loader),
                "global_batch_size": worker_batch_size * train.world_size(),
                "gradient": gradients[0].sum().item(),
            }
        )

    trainer = TorchTrainer(
        train_func,
        torch_backend=TorchConfig(backend="gloo", init_method="tcp"),  # lines 226 to 231
        scaling_config=ScalingConfig(use_gpu=False, num_workers=2),
    )
    first, second = trainer.fit().metrics_by_rank
    assert first == second
    assert first["kind"] == "DistributedDataParallel"
    assert (first["batches"], first["global_batch_size"]) == (4, 10)


def test_a_dataset_on_eight_workers(tmp_path: Path):
    """Lines 407 to 426, and the same on the other page (003, lines 142 to 161)."""
    import lockstep.data
    from lockstep.air import ScalingConfig, session
    from lockstep.train.torch import TorchTrainer

    # the shards, by name
    def train_func(config):
        train_data_shard = session.get_dataset_shard("train")
        validation_data_shard = session.get_dataset_shard("validation")
        rows = [*train_data_shard.iter_rows(), *validation_data_shard.iter_rows()]
        session.report({"numbers": [int(row["number"]) for row in rows]})

    # 80 in 100 rows for training, at random
    (tmp_path / "data.csv").write_text("number\n" + "\n".join(map(str, range(100))))
    dataset = lockstep.data.read_csv(str(tmp_path / "data.csv"))
    train_dataset, validation_dataset = dataset.train_test_split(
        test_size=0.2,
        shuffle=True,
    )

    trainer = TorchTrainer(
        train_func,
        datasets={"train": train_dataset, "validation": validation_dataset},
        scaling_config=ScalingConfig(num_workers=8),
    )
    numbers = [rank["numbers"] for rank in trainer.fit().metrics_by_rank]

    assert [len(of_rank) for of_rank in numbers] == [12] * 8
    assert len({number for of_rank in numbers for number in of_rank}) == 96


def test_saving_checkpoints():
    """Lines 511 to 561."""
    import numpy as np
    import torch
    import torch.nn as nn
    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
    from torch.optim import Adam

    import lockstep.train.torch
    from lockstep.air import Checkpoint, ScalingConfig, session
    from lockstep.train.torch import TorchTrainer

    def train_func(config):
        n = 100
        # toy data: 4 features in, 1 target out
        X = torch.Tensor(np.random.normal(0, 1, size=(n, 4)))
        Y = torch.Tensor(np.random.uniform(0, 1, size=(n, 1)))
        # one layer, in DDP
        model = lockstep.train.torch.prepare_model(nn.Linear(4, 1))
        criterion = nn.MSELoss()

        optimizer = Adam(model.parameters(), lr=3e-4)
        for epoch in range(config["num_epochs"]):
            y = model.forward(X)
            loss = criterion(y, Y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # the names without DDP's prefix
            state_dict = model.state_dict()
            consume_prefix_in_state_dict_if_present(state_dict, "module.")
            checkpoint = Checkpoint.from_dict(dict(epoch=epoch, model_weights=state_dict))
            session.report({}, checkpoint=checkpoint)

    trainer = TorchTrainer(
        train_func,
        train_loop_config={"num_epochs": 5},
        scaling_config=ScalingConfig(num_workers=2),
    )
    result = trainer.fit()

    assert result.checkpoint is not None
    saved = result.checkpoint.to_dict()
    assert list(saved) == [
        "epoch",
        "model_weights",
        "_timestamp",
        "_preprocessor",
        "_current_checkpoint_id",
    ]
    assert (saved["epoch"], saved["_current_checkpoint_id"]) == (4, 4)
    assert saved["_preprocessor"] is None
    assert isinstance(saved["_timestamp"], int)
    assert set(saved["model_weights"]) == {"bias", "weight"}
    assert saved["model_weights"]["weight"].shape == (1, 4)
    assert len(result.best_checkpoints) == 5


def test_disabling_checkpoints():
    """Lines 630 to 645."""
    from lockstep import train
    from lockstep.air import CheckpointConfig, RunConfig, ScalingConfig
    from lockstep.train.torch import TorchTrainer

    def train_func():
        for epoch in range(3):
            train.save_checkpoint(epoch=epoch)

    checkpoint_config = CheckpointConfig(num_to_keep=0)

    trainer = TorchTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(checkpoint_config=checkpoint_config),
    )
    result = trainer.fit()

    assert list(Path(result.path).glob("*checkpoint*")) == []
    assert result.best_checkpoints == []


def test_keeping_the_best_checkpoints():
    """Lines 652 to 679: the scores are the checkpoints' own, not the metrics'."""
    from lockstep.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
    from lockstep.train.torch import TorchTrainer

    def train_func():
        # first checkpoint
        session.report(dict(loss=2), checkpoint=Checkpoint.from_dict(dict(loss=2)))
        # second checkpoint
        session.report(dict(loss=2), checkpoint=Checkpoint.from_dict(dict(loss=4)))
        # third checkpoint
        session.report(dict(loss=2), checkpoint=Checkpoint.from_dict(dict(loss=1)))
        # fourth checkpoint
        session.report(dict(loss=2), checkpoint=Checkpoint.from_dict(dict(loss=3)))

    # the two with the smallest loss
    checkpoint_config = CheckpointConfig(
        num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
    )

    trainer = TorchTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(checkpoint_config=checkpoint_config),
    )
    result = trainer.fit()

    run = Path(result.path)
    assert re.fullmatch(
        r"TorchTrainer_[0-9a-f]{5}_00000_0_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", run.name
    )
    assert [
        checkpoint.get_internal_representation() for checkpoint, _ in result.best_checkpoints
    ] == [
        ("local_path", str(run / "checkpoint_000000")),
        ("local_path", str(run / "checkpoint_000002")),
    ]
    # The newest is kept besides.
    assert sorted(path.name for path in run.glob("checkpoint_*")) == [
        "checkpoint_000000",
        "checkpoint_000002",
        "checkpoint_000003",
    ]


def test_loading_checkpoints():
    """Lines 698 to 765."""
    import numpy as np
    import torch
    import torch.nn as nn
    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
    from torch.optim import Adam

    import lockstep.train.torch
    from lockstep.air import Checkpoint, ScalingConfig, session
    from lockstep.train.torch import TorchTrainer

    def train_func(config):
        n = 100
        # toy data: 4 features in, 1 target out
        X = torch.Tensor(np.random.normal(0, 1, size=(n, 4)))
        Y = torch.Tensor(np.random.uniform(0, 1, size=(n, 1)))

        # one layer
        model = nn.Linear(4, 1)
        criterion = nn.MSELoss()
        optimizer = Adam(model.parameters(), lr=3e-4)
        start_epoch = 0

        checkpoint = session.get_checkpoint()
        if checkpoint:
            # the weights that the run before has reported
            checkpoint_dict = checkpoint.to_dict()
            model.load_state_dict(checkpoint_dict.get("model_weights"))  # type: ignore[arg-type]
            start_epoch = checkpoint_dict.get("epoch", -1) + 1

        # in DDP
        model = lockstep.train.torch.prepare_model(model)  # type: ignore[assignment]
        for epoch in range(start_epoch, config["num_epochs"]):
            y = model.forward(X)
            loss = criterion(y, Y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state_dict = model.state_dict()
            consume_prefix_in_state_dict_if_present(state_dict, "module.")
            checkpoint = Checkpoint.from_dict(dict(epoch=epoch, model_weights=state_dict))
            session.report({}, checkpoint=checkpoint)

    trainer = TorchTrainer(
        train_func,
        train_loop_config={"num_epochs": 2},
        scaling_config=ScalingConfig(num_workers=2),
    )
    # save a checkpoint
    result = trainer.fit()

    # load it
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"num_epochs": 4},
        scaling_config=ScalingConfig(num_workers=2),
        resume_from_checkpoint=result.checkpoint,
    )
    result = trainer.fit()

    assert result.checkpoint is not None
    saved = result.checkpoint.to_dict()
    assert (saved["epoch"], saved["_current_checkpoint_id"]) == (3, 2)
    assert set(saved["model_weights"]) == {"bias", "weight"}
    assert len(result.metrics_dataframe) == 2


def test_a_logging_callback():
    """Lines 871 to 900: ``last_result`` is the one before."""
    from lockstep.air import RunConfig, ScalingConfig, session
    from lockstep.callback import TrialSnapshot
    from lockstep.train.torch import TorchTrainer
    from lockstep.tune.logger import LoggerCallback

    class LoggingCallback(LoggerCallback):
        def __init__(self) -> None:
            self.results: List[Dict[str, Any]] = []

        def log_trial_result(self, iteration: int, trial: TrialSnapshot, result: Dict[str, Any]):
            self.results.append(trial.last_result)

    def train_func():
        for i in range(3):
            session.report({"epoch": i})

    callback = LoggingCallback()
    trainer = TorchTrainer(
        train_func,
        run_config=RunConfig(callbacks=[callback]),
        scaling_config=ScalingConfig(num_workers=2),
    )
    trainer.fit()

    first = ["trial_id", "experiment_id", "date", "timestamp", "pid", "hostname", "node_ip"]
    row = [
        "epoch",
        "_timestamp",
        "_time_this_iter_s",
        "_training_iteration",
        "time_this_iter_s",
        "done",
        "timesteps_total",
        "episodes_total",
        "training_iteration",
        *first[:4],
        "time_total_s",
        *first[4:],
        "config",
        "time_since_restore",
        "timesteps_since_restore",
        "iterations_since_restore",
        "warmup_time",
        "experiment_tag",
    ]
    assert len(callback.results) == 3
    assert list(callback.results[0]) == [*first, "config"]
    for epoch, result in enumerate(callback.results[1:]):
        assert [key for key in result if key != "checkpoint_dir_name"] == row
        assert result["epoch"] == epoch
        assert result["training_iteration"] == epoch + 1
        assert result["done"] is False
    for key in ("trial_id", "experiment_id", "pid", "hostname", "node_ip"):
        assert len({result[key] for result in callback.results}) == 1


# --------------------------------------------------------------- monitoring and logging (000, 001)


def test_reporting_a_result():
    """001, lines 25 to 31; and its note that rank 0's is used."""
    from lockstep import train
    from lockstep.train import ScalingConfig
    from lockstep.train.torch import TorchTrainer

    num_epochs = 2

    def train_func():
        for i in range(num_epochs):
            result = i + 10 * train.get_context().get_world_rank()
            train.report({"result": result})

    trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2))
    assert trainer.fit().metrics_dataframe["result"].tolist() == [0, 1]


def test_a_report_callback():
    """The second file included by 000 (line 58): every rank's metrics, and no checkpoint."""
    import lockstep.train.torch

    def train_fn_per_worker():
        rank = lockstep.train.get_context().get_world_rank()
        lockstep.train.report(metrics={"rank": rank})

    class CustomMetricsCallback(lockstep.train.UserCallback):
        def __init__(self) -> None:
            self.seen: List[Any] = []

        def after_report(self, run_context, metrics: List[Dict[str, Any]], checkpoint):
            self.seen.append((metrics, checkpoint))

    callback = CustomMetricsCallback()
    trainer = lockstep.train.torch.TorchTrainer(
        train_fn_per_worker,
        scaling_config=lockstep.train.ScalingConfig(num_workers=2),
        run_config=lockstep.train.RunConfig(callbacks=[callback]),
    )
    result = trainer.fit()

    assert callback.seen == [([{"rank": 0}, {"rank": 1}], None)]
    assert result.checkpoint is None
    assert result.metrics["rank"] == 0
    assert (result.log_dir / "progress.csv").exists()
    assert (result.log_dir / "result.json").exists()


# ------------------------------------------------------------------------ experiment tracking (002)


def test_tracking_in_the_training_function():
    """Lines 20 to 30: a function with a config, none given; rank 0's calls (117 to 124)."""
    from lockstep import train
    from lockstep.train import ScalingConfig
    from lockstep.train.torch import TorchTrainer

    def train_func(config):
        assert config == {}
        if train.get_context().get_world_rank() == 0:
            print("logging here only")

    scaling_config = ScalingConfig(num_workers=2, use_gpu=False)
    trainer = TorchTrainer(train_func, scaling_config=scaling_config)
    result = trainer.fit()

    logs = [(result.log_dir / "logs" / f"rank_{rank}.log").read_text() for rank in (0, 1)]
    assert logs == ["logging here only\n", ""]


def test_getting_started_with_credentials_for_all_workers(tmp_path: Path):
    """Lines 48 to 78, with a file where the page has a service."""
    from lockstep import train
    from lockstep.train import ScalingConfig
    from lockstep.train.torch import TorchTrainer

    # so that every worker has it
    lockstep.init(runtime_env={"env_vars": {"TRACKER_API_KEY": "your_api_key"}})

    def optimize():
        return 0.25

    def train_func(config):
        # 1 and 2: connect and start
        if train.get_context().get_world_rank() == 0:
            tracker = open(config["file"], "w")  # noqa: SIM115
            tracker.write(os.environ["TRACKER_API_KEY"] + "\n")

        loss = optimize()
        metrics = {"loss": loss}

        # 3: log
        if train.get_context().get_world_rank() == 0:
            tracker.write(json.dumps(metrics) + "\n")

        # 4: finish, so that all of it is there
        if train.get_context().get_world_rank() == 0:
            tracker.close()

    TorchTrainer(
        train_func,
        train_loop_config={"file": str(tmp_path / "tracked")},
        scaling_config=ScalingConfig(num_workers=2),
    ).fit()

    assert (tmp_path / "tracked").read_text() == 'your_api_key\n{"loss": 0.25}\n'
    assert "TRACKER_API_KEY" not in os.environ


def test_credentials_through_the_config():
    """Lines 91 to 107: a variable set in the function, from the config."""
    from lockstep import train
    from lockstep.train.torch import TorchTrainer

    def train_func(config):
        os.environ["DATABRICKS_CONFIG_FILE"] = config["databricks_config_file"]
        train.report({"file": os.environ["DATABRICKS_CONFIG_FILE"]})

    trainer = TorchTrainer(train_func, train_loop_config={"databricks_config_file": "shared/.cfg"})
    assert trainer.fit().metrics["file"] == "shared/.cfg"
    assert "DATABRICKS_CONFIG_FILE" not in os.environ


def test_one_tracking_run_for_all_attempts(tmp_path: Path):
    """Lines 223 to 239: no scaling config, restarts, and an id that stays."""
    import lockstep.train
    from lockstep.train import FailureConfig, RunConfig
    from lockstep.train.torch import TorchTrainer

    def train_func(config):
        if lockstep.train.get_context().get_world_rank() == 0:
            run = Path(config["dir"], lockstep.train.get_context().get_trial_id())
            with open(run, "a") as tracker:
                tracker.write("started\n")
            if run.read_text().count("started") <= 3:
                raise ConnectionError("preempted")

    trainer = TorchTrainer(
        train_func,
        train_loop_config={"dir": str(tmp_path)},
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    )

    result = trainer.fit()

    (tracked,) = tmp_path.iterdir()
    assert tracked.read_text() == "started\n" * 4
    assert tracked.name in result.path
