"""Datasets in training: what a trainer takes, what each worker gets, what is checked before."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.utils.data

import lockstep.data
from lockstep import train
from lockstep.air import session
from lockstep.errors import StorageError
from lockstep.train import (
    Checkpoint,
    DataConfig,
    DataParallelTrainer,
    DatasetConfig,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from lockstep.train.torch import TorchTrainer

QUIET = RunConfig(verbose=0)


def tell_ids() -> None:
    """Report what this rank reads of each dataset, in one epoch."""
    found = {}
    for name in ("train", "validation"):
        shard = train.get_dataset_shard(name)
        batches = list(shard.iter_batches(batch_size=4))
        found[name] = [int(i) for batch in batches for i in batch["id"]]
    train.report(found)


def fit(
    function: Callable[..., Any],
    *,
    workers: int = 2,
    datasets: dict[str, Any] | None = None,
    **options: Any,
) -> Result:
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=QUIET,
        datasets=datasets,
        **options,
    ).fit()


def ids(rows: int) -> Any:
    return lockstep.data.range(rows)


def shares(result: Result, name: str) -> list[list[int]]:
    return [rank[name] for rank in result.metrics_by_rank]


# -------------------------------------------------------------------------------- shares


def test_training_shards_are_equal() -> None:
    result = fit(tell_ids, workers=3, datasets={"train": ids(1000), "validation": ids(7)})
    assert list(map(len, shares(result, "train"))) == [333, 333, 333]
    seen = [i for share in shares(result, "train") for i in share]
    assert len(set(seen)) == 999
    assert list(map(len, shares(result, "validation"))) == [2, 2, 2]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_row_exactly_once_for_evaluation(workers: int) -> None:
    result = fit(
        tell_ids,
        workers=workers,
        datasets={"train": ids(100), "validation": ids(31).random_shuffle(seed=1)},
        dataset_config=DataConfig(equal=False),
    )
    for name, rows in (("train", 100), ("validation", 31)):
        assert sorted(i for share in shares(result, name) for i in share) == list(range(rows))


@pytest.mark.parametrize(
    "config",
    [
        DataConfig(datasets_to_split=["train"]),
        {"validation": DatasetConfig(split=False)},
        {"*": DatasetConfig(split=False), "train": DatasetConfig(split=True)},
    ],
    ids=["DataConfig", "DatasetConfig", "any other"],
)
def test_a_dataset_that_is_not_split_is_complete_on_every_worker(config: Any) -> None:
    datasets = {"train": ids(10), "validation": ids(6)}
    result = fit(tell_ids, datasets=datasets, dataset_config=config)
    assert shares(result, "train") == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert shares(result, "validation") == [list(range(6))] * 2


def test_the_older_config_shuffles() -> None:
    config = {"train": DatasetConfig(global_shuffle=True, split=False)}
    result = fit(tell_ids, datasets={"train": ids(50), "validation": ids(4)}, dataset_config=config)
    first, second = shares(result, "train")
    assert first == second != sorted(first)
    assert sorted(first) == list(range(50))


def test_global_batches_do_not_depend_on_the_number_of_workers() -> None:
    def tell_batches() -> None:
        shard = train.get_dataset_shard("train")
        batches = [batch["id"].tolist() for batch in shard.iter_batches(batch_size=12)]
        train.report({"batches": batches})

    seen = []
    for workers in (1, 2, 3):
        result = fit(
            tell_batches,
            workers=workers,
            datasets={"train": ids(100).random_shuffle(seed=5)},
            dataset_config=DataConfig(order="global", equal=False),
        )
        ranks = [rank["batches"] for rank in result.metrics_by_rank]
        seen.append([[i for part in parts for i in part] for parts in zip(*ranks, strict=True)])
    assert seen[0] == seen[1] == seen[2]
    assert list(map(len, seen[0])) == [12] * 8 + [4]


def test_a_seed_for_shuffles_that_have_none() -> None:
    datasets = {"train": ids(50).random_shuffle(), "validation": ids(50).random_shuffle(seed=1)}
    first, second, other = (
        fit(tell_ids, datasets=datasets, dataset_config=DataConfig(seed=seed)) for seed in (3, 3, 4)
    )
    assert shares(first, "train") == shares(second, "train") != shares(other, "train")
    assert shares(first, "validation") == shares(other, "validation")


# ------------------------------------------------------------------------- what may be given


class Squares(torch.utils.data.Dataset[dict[str, int]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"id": index}


class RayDataset:
    """Has what a Ray Data dataset is asked for; one without rows has no batches."""

    def __init__(self, rows: int = 8) -> None:
        self.rows = rows

    def iter_batches(self, *, batch_size: None, batch_format: str) -> Any:
        assert (batch_size, batch_format) == (None, "pyarrow")
        yield from (pa.table({"id": list(range(n, n + 4))}) for n in range(0, self.rows, 4))


RayDataset.__module__ = "ray.data.dataset"

TABLE = pa.table({"id": list(range(8))})


@pytest.mark.parametrize(
    "given",
    [
        lockstep.data.from_arrow(TABLE),
        TABLE,
        TABLE.to_pandas(),
        pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches()),
        Squares(),
        RayDataset(),
        lambda: TABLE,
        lambda: lockstep.data.range(8),
    ],
    ids=["lockstep", "arrow", "pandas", "stream", "torch", "ray", "function", "lazy"],
)
def test_what_is_a_dataset(given: Any) -> None:
    result = fit(tell_ids, datasets={"train": given, "validation": ids(2)})
    assert shares(result, "train") == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_hugging_face_dataset() -> None:
    hugging_face = pytest.importorskip("datasets")
    given = hugging_face.Dataset.from_dict({"id": list(range(8))})
    result = fit(tell_ids, datasets={"train": given, "validation": ids(2)})
    assert shares(result, "train") == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([1, 2], r"datasets=\[1, 2\]: expected a dict of names"),
        ({1: ids(2)}, "expected a dict of names to datasets"),
        ({"train": [1, 2]}, r"datasets\['train'\] is a builtins.list, which is no dataset"),
        ({"train": "data/*.csv"}, r"datasets\['train'\] is a builtins.str, which is no dataset"),
        ({"train": None}, r"datasets\['train'\] is a builtins.NoneType, which is no dataset"),
    ],
)
def test_what_is_no_dataset(given: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        DataParallelTrainer(print, datasets=given)


def test_a_function_that_returns_no_dataset() -> None:
    with pytest.raises(TypeError, match=r"datasets\['train'\] is a builtins.int, which is no"):
        fit(tell_ids, datasets={"train": lambda: 7})


@pytest.mark.parametrize(
    ("config", "error", "told"),
    [
        ("all", TypeError, "dataset_config='all': expected a DataConfig"),
        ({"train": True}, TypeError, "expected a DataConfig, or a dict of names to DatasetConfig"),
        (
            DataConfig(datasets_to_split=["valid"]),
            ValueError,
            "'valid' is not one of the trainer's datasets, which are 'train'",
        ),
        (
            {"valid": DatasetConfig(required=True)},
            ValueError,
            r"dataset_config\['valid'\]: the trainer's datasets are 'train'; give it one named",
        ),
    ],
)
def test_configs_that_do_not_fit(config: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        DataParallelTrainer(print, datasets={"train": ids(2)}, dataset_config=config)


# ------------------------------------------------------------------------- before training


def never() -> None:
    raise AssertionError("no worker should have started")


def test_an_empty_dataset_is_an_error_before_training() -> None:
    empty = lockstep.data.from_arrow(TABLE.slice(0, 0))
    with pytest.raises(ValueError, match=r"datasets\['train'\] is empty"):
        fit(never, datasets={"train": empty})
    with pytest.raises(ValueError, match=r"datasets\['train'\] is empty"):
        fit(never, datasets={"train": RayDataset(0)})


def test_fewer_rows_than_workers_is_an_error_before_training() -> None:
    with pytest.raises(ValueError, match=r"datasets\['train'\] has 1 rows for 2 workers"):
        fit(never, datasets={"train": ids(1)})


def test_a_missing_file_is_an_error_before_training(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.parquet")
    with pytest.raises(FileNotFoundError, match=re.escape(missing)):
        fit(never, datasets={"train": lockstep.data.read_parquet(missing)})


def test_a_schema_that_changes_is_an_error_before_training(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "x": [0.5, 1.5]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"id": [3, 4], "x": ["a", "b"]}), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"1\.parquet.*'x'|'x'.*1\.parquet"):
        fit(never, datasets={"train": lockstep.data.read_parquet(str(tmp_path))})


def test_a_function_that_cannot_be_sent(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w") as file:
        dataset = ids(4).map(lambda row: {**row, "file": file.fileno()})
        with pytest.raises(TypeError, match="non-serializable"):
            fit(never, datasets={"train": dataset})


# ------------------------------------------------------------------------- inside a worker


def test_an_unknown_name_lists_those_there_are() -> None:
    def ask() -> None:
        with pytest.raises(KeyError, match=r"'valid'.*datasets are 'train', 'test'"):
            train.get_dataset_shard("valid")
        with pytest.raises(KeyError, match="None"):
            train.get_dataset_shard()
        assert train.get_dataset_shard("train") is session.get_dataset_shard("train")
        train.report({})

    fit(ask, datasets={"train": ids(2), "test": ids(2)})


def test_the_only_dataset_needs_no_name() -> None:
    def ask() -> None:
        train.report({"rows": train.get_dataset_shard().count()})

    assert fit(ask, datasets={"train": ids(10)}).metrics["rows"] == 5


def test_without_datasets() -> None:
    def ask() -> None:
        with pytest.raises(KeyError, match=r"'train'.*datasets are none"):
            train.get_dataset_shard("train")
        train.report({})

    assert "data_wait" not in fit(ask).metrics


def test_outside_a_training_function() -> None:
    with pytest.raises(RuntimeError, match=r"get_dataset_shard\(\) works only inside a training"):
        train.get_dataset_shard("train")


def test_a_shard_is_what_the_older_api_returned_too() -> None:
    def ask() -> None:
        shard = session.get_dataset_shard("train")
        assert shard.count() == 4
        assert shard.schema().names == ["id"]
        assert shard.to_pandas()["id"].tolist() == shard.materialize().to_pandas()["id"].tolist()
        batches = shard.iter_batches(batch_size=3)
        assert next(batches)["id"].tolist() == [0, 1, 2]
        assert [len(batch["id"]) for batch in batches] == [3, 1]
        assert [row["id"] for row in shard.iter_rows()] == [0, 1, 2, 3]
        train.report({"rows": len(shard.to_pandas())})

    assert fit(ask, workers=1, datasets={"train": ids(4)}).metrics["rows"] == 4


def test_what_is_in_memory_is_mapped_rather_than_sent() -> None:
    def ask() -> None:
        shard = train.get_dataset_shard("train")
        total = sum(int(batch["id"].sum()) for batch in shard.iter_batches(batch_size=1 << 16))
        mapped = "lockstep-table" in Path("/proc/self/maps").read_text()
        train.report({"total": total, "mapped": mapped})
        if train.get_context().get_attempt() == 1:
            raise OSError("the next attempt has to map it, too")

    result = DataParallelTrainer(
        ask,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(1)),
        datasets={"train": pa.table({"id": np.arange(1 << 19)})},
    ).fit()
    assert [rank["mapped"] for rank in result.metrics_by_rank] == [True, True]
    assert sum(rank["total"] for rank in result.metrics_by_rank) == sum(range(1 << 19))


def test_trials_share_the_datasets_of_their_trainer() -> None:
    from lockstep import tune

    def ask(config: dict[str, Any]) -> None:
        rows = [int(i) for b in train.get_dataset_shard("train").iter_batches() for i in b["id"]]
        train.report({"rows": rows, "x": config["x"]})

    trainer = DataParallelTrainer(
        ask,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=QUIET,
        datasets={"train": ids(6)},
    )
    space = {"train_loop_config": {"x": tune.grid_search([1, 2])}}
    results = tune.Tuner(trainer, param_space=space, run_config=QUIET).fit()
    assert sorted(result.metrics["x"] for result in results) == [1, 2]
    for result in results:
        assert shares(result, "rows") == [[0, 1, 2], [3, 4, 5]]


def test_a_dataset_in_this_process() -> None:
    result = fit(tell_ids, workers=0, datasets={"train": ids(10), "validation": ids(3)})
    assert shares(result, "train") == [list(range(10))]


def test_transforms_run_in_the_workers() -> None:
    import os

    driver = os.getpid()

    def stamp(batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        return {**batch, "elsewhere": np.full(len(batch["id"]), os.getpid() != driver)}

    def ask() -> None:
        shard = train.get_dataset_shard("train")
        train.report({"elsewhere": all(batch["elsewhere"].all() for batch in shard.iter_batches())})

    assert fit(ask, datasets={"train": ids(10).map_batches(stamp)}).metrics["elsewhere"] is True


def test_an_error_in_a_transform_is_the_users_own() -> None:
    def divide(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 / (row["id"] - 7)}

    def ask() -> None:
        for _ in train.get_dataset_shard("train").iter_batches():
            pass

    with pytest.raises(WorkerGroupError) as raised:
        fit(ask, datasets={"train": ids(10).map(divide)})
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


# ------------------------------------------------------------------------- waiting for data


def test_waiting_is_measured() -> None:
    def slowly(batch: dict[str, Any]) -> dict[str, Any]:
        import time

        time.sleep(0.1)
        return batch

    def ask() -> None:
        shard = train.get_dataset_shard("train")
        train.report({"data": False})
        for _ in shard.iter_batches(batch_size=5):
            pass
        train.report({"data": True, "stats": str(shard.stats())})

    dataset = lockstep.data.range(40, override_num_blocks=8).map_batches(slowly)
    result = fit(ask, datasets={"train": dataset})
    before, after = result.metrics_dataframe["data_wait"]
    assert before == 0.0
    assert 0.5 < after <= 1.0
    assert result.metrics["data_wait"] == after
    assert "waiting" in result.metrics["stats"]


def test_functions_in_processes_of_the_workers(tmp_path: Path) -> None:
    def note(batch: dict[str, Any]) -> dict[str, Any]:
        import os

        return {**batch, "pid": np.full(len(batch["id"]), os.getpid())}

    def ask() -> None:
        import os

        shard = train.get_dataset_shard("train")
        found, pids = [], set()
        for batch in shard.iter_batches(batch_size=10):
            found += batch["id"].tolist()
            pids |= set(batch["pid"].tolist())
        train.report({"ids": found, "pids": sorted(pids), "here": os.getpid()})

    dataset = ids(2000).map_batches(note, processes=True, concurrency=1)
    result = fit(ask, datasets={"train": dataset})
    assert [i for share in shares(result, "ids") for i in share] == list(range(2000))
    pids = {pid for share in shares(result, "pids") for pid in share}
    assert len(pids) == 2
    assert not pids & {rank["here"] for rank in result.metrics_by_rank}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)  # they ended with the workers


def test_waiting_for_data_is_shown_in_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    def ask() -> None:
        list(train.get_dataset_shard("train").iter_batches())
        train.report({})

    DataParallelTrainer(ask, run_config=RunConfig(verbose=1), datasets={"train": ids(4)}).fit()
    assert re.search(r"\d+% waiting for data", capfd.readouterr().out)


def test_a_metric_of_that_name_is_the_users() -> None:
    def ask() -> None:
        train.report({"data_wait": "mine"})

    assert fit(ask, datasets={"train": ids(4)}).metrics["data_wait"] == "mine"


# ------------------------------------------------------------------------- with torch


def test_torch_workers_learn_from_shards(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((512, 4), np.float32)
    frame = pd.DataFrame({f"x{i}": x[:, i] for i in range(4)})
    frame["y"] = x @ np.array([1.0, -2.0, 3.0, 0.5], np.float32)
    for number in range(4):
        part = frame.iloc[number::4]
        pq.write_table(
            pa.Table.from_pandas(part, preserve_index=False), tmp_path / f"{number}.parquet"
        )

    def learn() -> None:
        from lockstep.train.torch import prepare_model

        model = prepare_model(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        shard = train.get_dataset_shard("train")
        for _ in range(20):
            for batch in shard.iter_torch_batches(batch_size=32):
                features = torch.stack([batch[f"x{i}"] for i in range(4)], dim=1)
                loss = ((model(features)[:, 0] - batch["y"]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            train.report({"loss": loss.item(), "device": str(batch["y"].device)})

    result = TorchTrainer(
        learn,
        datasets={"train": lockstep.data.read_parquet(str(tmp_path)).random_shuffle(seed=0)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=QUIET,
    ).fit()
    assert result.metrics["loss"] < 1e-3
    assert result.metrics["device"] == "cpu"


def test_the_pages_of_ray(tmp_path: Path) -> None:
    """Seeds 003:135-161 and 004:400-426, with the imports changed."""
    pd.DataFrame({"id": range(100)}).to_csv(tmp_path / "data.csv", index=False)

    def train_func(config: dict[str, Any]) -> None:
        train_data_shard = session.get_dataset_shard("train")
        validation_data_shard = session.get_dataset_shard("validation")
        seen = [
            int(i)
            for shard in (train_data_shard, validation_data_shard)
            for batch in shard.iter_torch_batches(batch_size=8)
            for i in batch["id"]
        ]
        session.report({"seen": seen, "rows": train_data_shard.count()})

    dataset = lockstep.data.read_csv(str(tmp_path / "data.csv"))
    train_dataset, validation_dataset = dataset.train_test_split(test_size=0.2, shuffle=True)
    trainer = TorchTrainer(
        train_func,
        datasets={"train": train_dataset, "validation": validation_dataset},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=QUIET,
    )
    result = trainer.fit()
    assert result.metrics["rows"] == 40
    assert sorted(i for rank in result.metrics_by_rank for i in rank["seen"]) == list(range(100))


# ------------------------------------------------------------------------- restoring


def fail_once() -> None:
    rows = sum(len(batch["id"]) for batch in train.get_dataset_shard("train").iter_batches())
    train.report({"rows": rows}, checkpoint=Checkpoint.from_dict({"done": True}))
    raise OSError("no space left")


def failed_run(dataset: Any) -> str:
    with pytest.raises(WorkerGroupError) as raised:
        fit(fail_once, datasets={"train": dataset})
    assert raised.value.result is not None
    return raised.value.result.path


def count_rows() -> None:
    rows = sum(len(batch["id"]) for batch in train.get_dataset_shard("train").iter_batches())
    train.report({"rows": rows})


def test_restore_has_the_datasets(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "0.parquet")
    path = failed_run(lockstep.data.read_parquet(str(tmp_path / "0.parquet")))
    restored = DataParallelTrainer.restore(path, train_loop_per_worker=count_rows)
    assert restored.fit().metrics["rows"] == 4


@pytest.mark.parametrize("change", ["gone", "longer"])
def test_restore_sees_that_a_file_has_changed(tmp_path: Path, change: str) -> None:
    file = tmp_path / "0.parquet"
    pq.write_table(TABLE, file)
    path = failed_run(lockstep.data.read_parquet(str(file)))
    if change == "gone":
        file.unlink()
    else:
        pq.write_table(pa.concat_tables([TABLE, TABLE]), file)
    with pytest.raises(StorageError, match=r"^datasets\['train'\]: .*0\.parquet"):
        DataParallelTrainer.restore(path, train_loop_per_worker=never).fit()


def test_what_was_in_memory_is_kept_if_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    path = failed_run(TABLE)
    assert (
        DataParallelTrainer.restore(path, train_loop_per_worker=count_rows).fit().metrics["rows"]
        == 4
    )

    monkeypatch.setattr("lockstep.train.record.saved_trainer.DATASET_BYTES", 10)
    path = failed_run(TABLE)
    with pytest.raises(ValueError, match=r"dataset 'train' could not be kept.*give datasets="):
        DataParallelTrainer.restore(path, train_loop_per_worker=count_rows)
    restored = DataParallelTrainer.restore(
        path, train_loop_per_worker=count_rows, datasets={"train": TABLE}
    )
    assert restored.fit().metrics["rows"] == 4


def test_other_data_in_the_middle_of_an_epoch_is_an_error() -> None:
    def stop_early() -> None:
        batches = iter(train.get_dataset_shard("train").iter_batches(batch_size=1))
        next(batches)
        train.report({}, checkpoint=Checkpoint.from_dict({}))
        raise OSError("no space left")

    with pytest.raises(WorkerGroupError) as raised:
        fit(stop_early, datasets={"train": TABLE})
    assert raised.value.result is not None
    path = raised.value.result.path
    with pytest.raises(ValueError, match=r"datasets\['train'\] has 4 rows.*epoch of 8"):
        DataParallelTrainer.restore(path, datasets={"train": ids(4)}).fit()


def test_a_new_run_from_a_checkpoint_begins_its_data() -> None:
    def stop_early() -> None:
        batches = iter(train.get_dataset_shard("train").iter_batches(batch_size=1))
        first = int(next(batches)["id"][0])
        train.report({"first": first}, checkpoint=Checkpoint.from_dict({}))

    result = fit(stop_early, workers=1, datasets={"train": ids(4)})
    again = fit(
        stop_early,
        workers=1,
        datasets={"train": ids(4)},
        resume_from_checkpoint=result.checkpoint,
    )
    assert again.metrics["first"] == result.metrics["first"] == 0


def test_the_report_of_a_failed_attempt_keeps_its_wait() -> None:
    def fail_first() -> None:
        list(train.get_dataset_shard("train").iter_batches())
        train.report({"attempt": train.get_context().get_attempt()})
        if train.get_context().get_attempt() == 1:
            raise OSError("no space left")

    result = DataParallelTrainer(
        fail_first,
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(1)),
        datasets={"train": ids(4)},
    ).fit()
    assert len(result.metrics_dataframe["data_wait"].dropna()) == 2
