"""Reported checkpoints: what they hold, which ones stay, and what a run starts from."""

from __future__ import annotations

import math
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from lockstep import train
from lockstep.errors import ControllerError
from lockstep.storage import LocalStorage
from lockstep.train import Checkpoint, CheckpointConfig, Result
from tests.integration.runs import failure, fit, trainer

ADDED = {"_timestamp", "_preprocessor", "_current_checkpoint_id"}


def directories(result: Result) -> list[str]:
    return sorted(path.name for path in Path(result.path).iterdir() if path.is_dir())


def checkpoints(result: Result) -> list[str]:
    return [name for name in directories(result) if name != "logs"]


def newest(result: Result) -> Checkpoint:
    assert result.checkpoint is not None
    return result.checkpoint


def files(checkpoint: Checkpoint) -> dict[str, str]:
    with checkpoint.as_directory() as folder:
        return {name: Path(folder, name).read_text() for name in checkpoint.files()}


# --------------------------------------------------------------------------------- what is kept


def test_a_dict_comes_back_with_three_more_keys() -> None:
    def train_func() -> None:
        for epoch in range(3):
            train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))

    result = fit(train_func)
    data = newest(result).to_dict()
    assert list(data) == ["epoch", "_timestamp", "_preprocessor", "_current_checkpoint_id"]
    assert (data["epoch"], data["_current_checkpoint_id"]) == (2, 2)
    assert isinstance(data["_timestamp"], int)
    kind, path = newest(result).get_internal_representation()
    assert (kind, path) == ("local_path", os.path.join(result.path, "checkpoint_000002"))
    assert checkpoints(result) == [f"checkpoint_{number:06d}" for number in range(3)]
    assert result.checkpoint == result.best_checkpoints[-1][0]
    assert [metrics["epoch"] for _, metrics in result.best_checkpoints] == [0, 1, 2]


def test_a_temporary_directory_is_kept_and_stays_the_users() -> None:
    def train_func() -> None:
        for step in range(2):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "sub").mkdir()
                Path(folder, "sub", "weights").write_text(f"step {step}")
                train.report({}, checkpoint=Checkpoint.from_directory(folder))
                assert Path(folder, "sub", "weights").read_text() == f"step {step}"

    result = fit(train_func, workers=1)
    assert files(newest(result)) == {"sub/weights": "step 1"}
    assert files(result.best_checkpoints[0][0]) == {"sub/weights": "step 0"}


def test_later_changes_do_not_reach_it() -> None:
    def train_func() -> None:
        state = {"step": 0}
        checkpoint = Checkpoint.from_dict(state)
        state["step"] = 99
        train.report({}, checkpoint=checkpoint)
        state["step"] = 100

    assert newest(fit(train_func, workers=1)).to_dict()["step"] == 0


def test_an_empty_directory_is_a_checkpoint(tmp_path: Path) -> None:
    def train_func() -> None:
        train.report({}, checkpoint=Checkpoint.from_directory(tmp_path))

    assert newest(fit(train_func, workers=1)).files() == {}


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    def train_func() -> None:
        train.report({}, checkpoint=Checkpoint.from_directory(tmp_path / "nowhere"))

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, FileNotFoundError)
    assert "nowhere" in str(error)


def test_what_is_not_a_checkpoint() -> None:
    def train_func() -> None:
        train.report({}, checkpoint={"epoch": 1})  # type: ignore[arg-type]

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, TypeError)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_trainers_metadata_is_in_its_checkpoints(workers: int, tmp_path: Path) -> None:
    def train_func() -> None:
        train.report({}, checkpoint=Checkpoint.from_dict({}))
        own = Checkpoint.from_dict({})
        own.set_metadata({"who": "the function"})
        train.report({}, checkpoint=own)

    def unpicklable_by_json(x: int) -> int:
        return x

    metadata = {"who": "the trainer", "classes": ["a", "b"], "function": unpicklable_by_json}
    result = trainer(train_func, workers=workers).with_changes(metadata=metadata).fit()
    first, second = [checkpoint for checkpoint, _ in result.best_checkpoints]
    assert first.get_metadata() == {"who": "the trainer", "classes": ["a", "b"]}
    assert second.get_metadata() == {"who": "the function", "classes": ["a", "b"]}


def test_metadata_travels_along(tmp_path: Path) -> None:
    def train_func() -> None:
        checkpoint = Checkpoint.from_dict({})
        checkpoint.set_metadata({"framework": "none"})
        train.report({}, checkpoint=checkpoint)

    assert newest(fit(train_func, workers=1)).get_metadata() == {"framework": "none"}


def test_nothing_but_the_checkpoints_is_left_in_the_directory() -> None:
    def train_func() -> None:
        for step in range(4):
            train.report({}, checkpoint=Checkpoint.from_dict({"step": step}))

    result = fit(train_func, checkpoint_config=CheckpointConfig(num_to_keep=2))
    assert checkpoints(result) == ["checkpoint_000002", "checkpoint_000003"]
    assert not [name for name in os.listdir(result.path) if name.startswith(".")]


# ------------------------------------------------------------------------------- several ranks


def test_the_ranks_files_are_merged(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"rank_{rank}").write_text(str(rank))
            Path(folder, "same").write_text("equal on all")
            train.report({}, checkpoint=Checkpoint.from_directory(folder))

    result = fit(train_func, workers=3, verbose=1)
    assert files(newest(result)) == {
        "rank_0": "0",
        "rank_1": "1",
        "rank_2": "2",
        "same": "equal on all",
    }
    assert "different files" not in "".join(capfd.readouterr())


def test_one_name_with_different_content_gives_one_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(3):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "model").write_text(f"{step} of rank {rank}")
                train.report({}, checkpoint=Checkpoint.from_directory(folder))

    result = fit(train_func, verbose=1)
    assert files(newest(result)) == {"model": "2 of rank 0"}
    printed = "".join(capfd.readouterr())
    assert printed.count("different files named model") == 1


def test_only_some_ranks_bring_one() -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        checkpoint = None if rank == 0 else Checkpoint.from_dict({"rank": rank})
        train.report({"rank": rank}, checkpoint=checkpoint)
        found = train.get_checkpoint()
        assert found is not None
        assert found.to_dict()["rank"] == 1

    result = fit(train_func, workers=3)
    assert newest(result).to_dict()["rank"] == 1
    assert result.reported_metrics == {"rank": 0}


def test_ranks_take_turns() -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(4):
            mine = step % 2 == rank
            train.report(
                {"step": step},
                checkpoint=Checkpoint.from_dict({"step": step}) if mine else None,
            )

    result = fit(train_func)
    assert [c.to_dict()["step"] for c, _ in result.best_checkpoints] == [0, 1, 2, 3]


def test_reports_without_a_checkpoint_in_between() -> None:
    def train_func() -> None:
        for step in range(4):
            checkpoint = Checkpoint.from_dict({"step": step}) if step % 2 else None
            train.report({"step": step}, checkpoint=checkpoint)

    result = fit(train_func)
    names = result.metrics_dataframe["checkpoint_dir_name"].tolist()
    assert names[1::2] == ["checkpoint_000000", "checkpoint_000001"]
    assert not any(isinstance(name, str) for name in names[0::2])
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [1, 3]


# ----------------------------------------------------------------------- inside the function


def test_get_checkpoint_is_the_one_just_reported() -> None:
    def train_func() -> None:
        assert train.get_checkpoint() is None
        assert train.load_checkpoint() is None
        for step in range(3):
            train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
            found = train.get_checkpoint()
            assert found is not None
            assert found.to_dict()["step"] == step
            assert (train.load_checkpoint() or {})["step"] == step
        train.report({})
        assert (train.load_checkpoint() or {})["step"] == 2

    fit(train_func)


def test_all_reported_checkpoints() -> None:
    def train_func() -> None:
        assert train.get_all_reported_checkpoints() == []
        for step in range(3):
            train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
        found = train.get_all_reported_checkpoints()
        assert [c.to_dict()["step"] for c, _ in found] == [0, 1, 2]
        assert [metrics["step"] for _, metrics in found] == [0, 1, 2]

    fit(train_func)


def test_each_rank_hears_of_a_checkpoint_once() -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        train.report({}, checkpoint=Checkpoint.from_dict({"n": 0}))
        train.save_checkpoint(n=1)
        if rank == 0:
            assert (train.load_checkpoint() or {})["n"] == 1
        train.report({})
        train.report({}, checkpoint=Checkpoint.from_dict({"n": 2}))
        found = train.get_all_reported_checkpoints()
        assert [c.to_dict()["n"] for c, _ in found] == [0, 1, 2], rank

    fit(train_func)


# --------------------------------------------------------------------------- which ones stay


def scored(
    pairs: list[tuple[Any, Any]],
    *,
    key: str = "loss",
    keep: int | None = 2,
    order: Literal["max", "min"] = "min",
    attribute: str | None = "loss",
) -> Result:
    """A run that reports ``pairs`` of (metric, value in the dict checkpoint); ... leaves it out."""

    def train_func() -> None:
        for step, (metric, value) in enumerate(pairs):
            data = {"step": step} if value is ... else {"step": step, "loss": value}
            metrics = {} if metric is ... else {key: metric}
            train.report(metrics, checkpoint=Checkpoint.from_dict(data))

    return fit(
        train_func,
        workers=1,
        checkpoint_config=CheckpointConfig(keep, attribute, order),
    )


def kept(result: Result) -> list[int]:
    return [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints]


def on_disk(result: Result) -> list[int]:
    return [int(name.rpartition("_")[2]) for name in checkpoints(result)]


class TestScores:
    def test_the_dict_decides_over_the_metrics(self) -> None:
        result = scored([(2, 2), (2, 4), (2, 1), (2, 3)])
        assert kept(result) == [0, 2]
        assert on_disk(result) == [0, 2, 3]
        assert newest(result).to_dict()["step"] == 3

    def test_the_metrics_decide_where_the_dict_says_nothing(self) -> None:
        assert kept(scored([(2, ...), (4, ...), (1, ...), (3, ...)])) == [0, 2]
        assert kept(scored([(2, "text"), (4, True), (1, None), (3, [1])])) == [0, 2]

    def test_largest(self) -> None:
        assert kept(scored([(2, ...), (4, ...), (1, ...), (3, ...)], order="max")) == [3, 1]

    def test_nested(self) -> None:
        pairs = [({"loss": 3}, ...), ({"loss": 1}, ...), ({"loss": 2}, ...)]
        result = scored(pairs, key="eval", attribute="eval/loss")
        assert kept(result) == [2, 1]

    def test_a_tie_goes_to_the_later(self) -> None:
        assert kept(scored([(1, ...), (1, ...), (1, ...)])) == [1, 2]

    def test_nan_and_missing_are_worst(self) -> None:
        assert kept(scored([(math.nan, ...), (5, ...), (..., ...), (9, ...)])) == [3, 1]
        assert kept(scored([(math.nan, ...), (..., ...)], keep=1)) == [1]

    def test_the_newest_stays_besides(self) -> None:
        result = scored([(1, ...), (2, ...), (3, ...)], keep=1)
        assert kept(result) == [0]
        assert on_disk(result) == [0, 2]
        assert newest(result).to_dict()["step"] == 2

    def test_without_an_attribute_the_newest_stay(self) -> None:
        result = scored([(1, ...), (2, ...), (3, ...)], attribute=None)
        assert kept(result) == on_disk(result) == [1, 2]

    def test_one_of_the_keys_every_row_has(self) -> None:
        result = scored([(0, ...)] * 3, attribute="training_iteration", order="max", keep=1)
        assert kept(result) == [2]

    def test_best_of_what_is_kept(self) -> None:
        result = scored([(2, ...), (1, ...), (math.nan, ...)], keep=None)
        assert kept(result) == [2, 0, 1]
        best = result.get_best_checkpoint("loss", "max")
        assert best is not None
        assert best.to_dict()["step"] == 0

    @pytest.mark.parametrize("mode", ["max", "min"])
    def test_the_best_of_equals_is_the_later(self, mode: Literal["max", "min"]) -> None:
        result = scored([(1, ...), (1, ...)], keep=None, order=mode)
        best = result.get_best_checkpoint("loss", mode)
        assert best is not None
        assert best == result.best_checkpoints[-1][0]
        assert best.to_dict()["step"] == 1

    def test_a_dict_that_is_a_directory_decides_as_well(self) -> None:
        def train_func() -> None:
            for step, loss in enumerate([3, 1, 2]):
                with tempfile.TemporaryDirectory() as folder:
                    Checkpoint.from_dict({"step": step, "loss": loss}).to_directory(folder)
                    train.report({"loss": 0}, checkpoint=Checkpoint.from_directory(folder))

        config = CheckpointConfig(1, "loss", "min")
        assert kept(fit(train_func, workers=1, checkpoint_config=config)) == [1]


class TestNoneToKeep:
    def test_nothing_is_left(self) -> None:
        def train_func() -> None:
            for step in range(3):
                train.report({}, checkpoint=Checkpoint.from_dict({"step": step}))
                assert (train.load_checkpoint() or {})["step"] == step

        result = fit(train_func, checkpoint_config=CheckpointConfig(num_to_keep=0))
        assert result.checkpoint is None
        assert result.best_checkpoints == []
        assert checkpoints(result) == []
        assert Result.from_path(result.path).checkpoint is None

    def test_it_still_serves_a_retry(self) -> None:
        def train_func() -> None:
            if train.get_context().attempt == 1:
                train.report({}, checkpoint=Checkpoint.from_dict({"step": 7}))
                raise ValueError
            assert (train.load_checkpoint() or {})["step"] == 7

        fit(train_func, checkpoint_config=CheckpointConfig(num_to_keep=0), max_failures=1)

    def test_save_checkpoint_without_a_report(self) -> None:
        def train_func() -> None:
            for epoch in range(2):
                train.save_checkpoint(epoch=epoch)

        result = fit(train_func, checkpoint_config=CheckpointConfig(num_to_keep=0))
        assert result.best_checkpoints == []
        assert checkpoints(result) == []


class TestSaveCheckpoint:
    @pytest.mark.parametrize("everywhere", [True, False])
    def test_rank_0_counts_and_it_is_no_row(self, everywhere: bool) -> None:
        def train_func() -> None:
            rank = train.world_rank()
            for epoch in range(3):
                if everywhere or rank == 0:
                    train.save_checkpoint(epoch=epoch, rank=rank)

        result = fit(train_func)
        data = newest(result).to_dict()
        assert {key: data[key] for key in data.keys() - ADDED} == {"epoch": 2, "rank": 0}
        assert checkpoints(result) == [f"checkpoint_{number:06d}" for number in range(3)]
        assert result.metrics == {}
        assert len(result.metrics_dataframe) == 0

    def test_between_reports(self) -> None:
        def train_func() -> None:
            for step in range(3):
                train.report({"step": step})
                train.save_checkpoint(step=step)

        result = fit(train_func)
        assert result.metrics["training_iteration"] == 3
        assert newest(result).to_dict()["step"] == 2

    def test_what_cannot_be_pickled_is_named(self) -> None:
        def train_func() -> None:
            train.save_checkpoint(bad=threading.Lock())

        error = failure(train_func, workers=1)
        assert isinstance(error.__cause__, TypeError)
        assert "bad" in str(error.__cause__)


# ---------------------------------------------------------------------------- starting from one


def epochs(config: dict[str, Any]) -> None:
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict().get("epoch", -1) + 1 if checkpoint else 0
    for epoch in range(start, config["until"]):
        train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))


class TestResume:
    @pytest.mark.parametrize(("until", "last_id"), [(4, 2), (5, 3)])
    def test_the_number_of_a_dict_continues(self, until: int, last_id: int) -> None:
        first = fit(epochs, workers=1, config={"until": 2})
        assert newest(first).to_dict()["_current_checkpoint_id"] == 1
        again = trainer(epochs, workers=1, config={"until": until})
        again.resume_from_checkpoint = newest(first)
        second = again.fit()
        assert second.metrics_dataframe["epoch"].tolist() == list(range(2, until))
        data = newest(second).to_dict()
        assert (data["epoch"], data["_current_checkpoint_id"]) == (until - 1, last_id)
        assert checkpoints(second) == [f"checkpoint_{n:06d}" for n in range(1, last_id + 1)]
        assert checkpoints(first) == ["checkpoint_000000", "checkpoint_000001"]

    def test_from_a_dict_in_memory(self) -> None:
        again = trainer(epochs, config={"until": 3})
        again.resume_from_checkpoint = Checkpoint.from_dict({"epoch": 1})
        assert checkpoints(again.fit()) == ["checkpoint_000000"]

    def test_from_a_directory(self, tmp_path: Path) -> None:
        def train_func() -> None:
            found = train.get_checkpoint()
            assert found is not None
            with found.as_directory() as folder:
                train.report({"found": Path(folder, "weights").read_text()}, checkpoint=found)

        (tmp_path / "weights").write_text("w")
        again = trainer(train_func)
        again.resume_from_checkpoint = Checkpoint.from_directory(tmp_path)
        result = again.fit()
        assert result.metrics["found"] == "w"
        assert files(newest(result)) == {"weights": "w"}
        assert newest(result).path != str(tmp_path)

    def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        again = trainer(epochs, config={"until": 3})
        again.resume_from_checkpoint = Checkpoint(tmp_path / "gone")
        with pytest.raises(FileNotFoundError, match="gone"):
            again.fit()


class TestRetry:
    def test_resumes_from_the_newest_and_numbers_continue(self) -> None:
        def train_func() -> None:
            known = train.load_checkpoint()
            start = known["step"] + 1 if known else 0
            for step in range(start, 4):
                train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
                if step == 1 and not known:
                    raise ValueError("once")

        result = fit(train_func, max_failures=1)
        assert result.metrics_dataframe["step"].tolist() == [0, 1, 2, 3]
        assert checkpoints(result) == [f"checkpoint_{number:06d}" for number in range(4)]

    def test_what_a_lost_attempt_staged_is_not_in_the_next_one(self, tmp_path: Path) -> None:
        def train_func() -> None:
            context = train.get_context()
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, f"attempt_{context.attempt}").write_text("x" * 10)
                checkpoint = Checkpoint.from_directory(folder)
                if context.attempt == 1 and context.get_world_rank() == 1:
                    checkpoint = Unreadable(folder)
                train.report({}, checkpoint=checkpoint, checkpoint_dir_name="named")

        class Unreadable(Checkpoint):
            def files(self) -> dict[str, int]:
                return {**super().files(), "missing": 1}

        result = fit(train_func, max_failures=1)
        assert newest(result).path == os.path.join(result.path, "named")
        assert list(files(newest(result))) == ["attempt_2"]


def test_a_checkpoint_without_files_does_not_take_over_a_users_directory(tmp_path: Path) -> None:
    def train_func() -> None:
        mine = Path(train.get_context().get_trial_dir(), "mine")
        mine.mkdir()
        Path(mine, "notes").write_text("kept")
        with tempfile.TemporaryDirectory() as empty:
            train.report({}, checkpoint=Checkpoint(empty), checkpoint_dir_name="mine")

    with pytest.raises(ControllerError, match=r"mine.*checkpoint_dir_name") as caught:
        fit(train_func, workers=1, checkpoint_config=CheckpointConfig(num_to_keep=1))
    assert caught.value.result is not None
    assert Path(caught.value.result.path, "mine", "notes").read_text() == "kept"


def test_a_misspelt_score_attribute_is_reported_and_deletes_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def train_func() -> None:
        for step in range(3):
            train.report({"loss": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    config = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="los")
    result = fit(train_func, workers=1, checkpoint_config=config)
    assert len(checkpoints(result)) == 3
    printed = capfd.readouterr().err
    assert printed.count("checkpoint_score_attribute='los'") == 1
    assert "it has 'loss'" in printed


def test_a_score_that_comes_later_ranks_from_then_on(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        for step in range(4):
            metrics = {"loss": step} if step >= 2 else {"other": step}
            train.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}))

    config = CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min"
    )
    result = fit(train_func, workers=1, checkpoint_config=config)
    # The best, and the newest, which a restore would start from.
    assert checkpoints(result) == ["checkpoint_000002", "checkpoint_000003"]
    assert "it has 'other'" in capfd.readouterr().err


class Opener(train.UserCallback):
    """Opens the checkpoint of each report, at once."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.steps.append(checkpoint.to_dict()["step"])


def test_a_callback_can_open_the_checkpoint_of_the_report_it_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish = LocalStorage.publish

    def slowly(self: LocalStorage, name: str, manifest: bytes, attempt: int = 0) -> None:
        never.wait(0.2)  # long enough for a callback that is notified too early
        publish(self, name, manifest, attempt)

    def train_func() -> None:
        for step in range(3):
            train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    opener, never = Opener(), threading.Event()
    monkeypatch.setattr(LocalStorage, "publish", slowly)
    fit(train_func, workers=1, callbacks=[opener])
    assert opener.steps == [0, 1, 2]
