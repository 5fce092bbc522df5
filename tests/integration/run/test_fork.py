"""Forks: a new run from a checkpoint of another one, finished or running."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from lockstep import cli, train
from lockstep.cli.fork import changed, split_step
from lockstep.errors import CheckpointError
from lockstep.journal.records import RunRecords
from lockstep.storage import open_storage
from lockstep.train import CheckpointConfig, DataParallelTrainer, Result, RunConfig, ScalingConfig
from lockstep.train.record import fork as fork_module
from lockstep.train.record.fork import choose_fork
from tests.integration.runs import fit


def count(config: dict[str, Any]) -> None:
    """The sum of ``config["by"]`` over the steps, kept at every second step."""
    checkpoint = train.get_checkpoint()
    kept = checkpoint.to_dict() if checkpoint else {"step": 0, "total": 0}
    total = kept["total"]
    for step in range(kept["step"] + 1, config["steps"] + 1):
        total += config["by"]
        saved = {"step": step, "total": total}
        keeps = step % 2 == 0
        train.report(
            {"total": total, "step": step},
            checkpoint=train.Checkpoint.from_dict(saved) if keeps else None,
        )


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fit(
        count,
        config={"by": 1, "steps": 6, "nested": {"a": 1}},
        storage_path=str(tmp_path_factory.mktemp("parent")),
        name="digits",
    )


def journal(result: Result) -> bytes:
    return (Path(result.path) / "journal.jsonl").read_bytes()


def test_a_fork_continues_from_the_step(parent: Result) -> None:
    before = journal(parent)
    trainer = DataParallelTrainer.fork(parent.path, step=4, train_loop_config={"by": 10})
    fork = trainer.fit()
    assert list(fork.metrics_dataframe["total"]) == [14, 24]
    assert list(fork.metrics_dataframe["training_iteration"]) == [5, 6]
    assert fork.config == {"by": 10, "steps": 6, "nested": {"a": 1}}
    assert journal(parent) == before
    # Beside its parent, whose settings it has.
    assert Path(fork.path).parent == Path(parent.path).parent
    assert fork.forked_at == 4
    assert fork.parent is not None
    assert fork.parent.path == parent.path
    assert parent.parent is None
    assert parent.forked_at is None
    assert list(fork.history_dataframe["total"]) == [1, 2, 3, 4, 14, 24]
    assert fork.history_dataframe["trial_id"].nunique() == 2


def test_a_fork_does_not_resume(parent: Result) -> None:
    config = RunConfig(name="digits", storage_path=str(Path(parent.path).parents[1]), resume="auto")
    with pytest.raises(ValueError, match=r"resume='auto'.*a fork is a new run"):
        DataParallelTrainer.fork(parent.path, step=4, run_config=config)


def test_a_fork_of_a_fork_below_another_name(parent: Result) -> None:
    first = DataParallelTrainer.fork(parent.path, step=2, train_loop_config={"by": 10}).fit()
    second = DataParallelTrainer.fork(
        first.path, step=4, name="other", train_loop_config={"by": 100}
    ).fit()
    assert Path(second.path).parent.name == "other"
    assert list(second.history_dataframe["total"]) == [1, 2, 12, 22, 122, 222]
    assert second.parent is not None
    assert second.parent.parent is not None
    assert second.parent.parent.path == parent.path
    # Its checkpoints are its own.
    again = DataParallelTrainer.restore(second.path).fit()
    assert again.metrics["total"] == 222


def test_without_a_step_it_is_the_newest(parent: Result) -> None:
    fork = DataParallelTrainer.fork(
        parent.path,
        train_loop_config={"steps": 7},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(verbose=0, storage_path=str(Path(parent.path).parents[2] / "there")),
    ).fit()
    assert (fork.forked_at, fork.metrics["total"]) == (6, 7)
    assert len(fork.attempts[0]["workers"]) == 1
    assert "there" in fork.path


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (3, ValueError, "no checkpoint at step 3; it has 2, 4, 6."),
        ("4", TypeError, "fork(step='4'): expected the number"),
        (True, TypeError, "fork(step=True)"),
    ],
)
def test_a_step_without_a_checkpoint(
    parent: Result, step: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        DataParallelTrainer.fork(parent.path, step=step)
    assert message in str(raised.value)


def test_of_many_checkpoints_the_nearest_are_named(
    parent: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_module, "_MAX_NAMED", 2)
    with pytest.raises(ValueError, match=r"it has 3 from 2 to 6, the nearest 4 and 6\."):
        DataParallelTrainer.fork(parent.path, step=5)


def test_nothing_to_fork_from(tmp_path: Path) -> None:
    result = fit(count, config={"by": 1, "steps": 1}, workers=1, storage_path=str(tmp_path))
    with pytest.raises(ValueError, match="has no checkpoint to fork from"):
        DataParallelTrainer.fork(result.path)


def test_a_running_run_is_forked_undisturbed(tmp_path: Path) -> None:
    """The parent deletes its old checkpoints, and waits until its fork has finished."""
    forked = tmp_path / "forked"

    def parent_func() -> None:
        for step in (1, 2, 3):
            if step == 3:
                while not forked.exists():
                    threading.Event().wait(0.01)
            train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}))

    results: list[Result] = []
    running = threading.Thread(
        target=lambda: results.append(
            fit(
                parent_func,
                workers=1,
                name="live",
                storage_path=str(tmp_path / "runs"),
                checkpoint_config=CheckpointConfig(num_to_keep=1),
            )
        )
    )
    running.start()
    try:
        place = None
        while place is None:
            assert running.is_alive()
            for found in (tmp_path / "runs").glob("live/*/checkpoint_000001/.lockstep_*"):
                place = found.parents[1]
            threading.Event().wait(0.01)

        def child_func() -> None:
            checkpoint = train.get_checkpoint()
            assert checkpoint is not None
            train.report({"from": checkpoint.to_dict()["step"]})

        child = DataParallelTrainer.fork(place, step=2, train_loop_per_worker=child_func).fit()
    finally:
        forked.touch()
        running.join(60)
    assert child.metrics["from"] == 2
    (result,) = results
    assert list(result.metrics_dataframe["step"]) == [1, 2, 3]
    assert len(result.attempts) == 1
    # The parent has deleted the checkpoint since; the fork has its own.
    assert child.checkpoint is not None
    assert child.checkpoint.to_dict()["step"] == 2


def test_a_checkpoint_that_is_deleted_before_it_is_copied(tmp_path: Path) -> None:
    result = fit(count, config={"by": 1, "steps": 2}, workers=1, storage_path=str(tmp_path))
    trainer = DataParallelTrainer.fork(result.path, step=2)
    shutil.rmtree(Path(result.path) / "checkpoint_000000")
    with pytest.raises(CheckpointError, match="was deleted before it was copied"):
        trainer.fit()
    states = {Result.from_path(path.parent).state for path in tmp_path.glob("*/*/journal.jsonl")}
    assert states == {"finished", "failed"}


def test_a_parent_that_moved_or_is_gone(parent: Result, tmp_path: Path) -> None:
    fork = DataParallelTrainer.fork(parent.path, step=2).fit()
    experiment = Path(parent.path).parent
    moved = shutil.copytree(experiment, tmp_path / "moved")
    there = Result.from_path(moved / Path(fork.path).name)
    assert there.parent is not None
    assert Path(there.parent.path).parent == moved
    alone = shutil.copytree(fork.path, tmp_path / "alone" / "fork")
    far = Result.from_path(alone)
    assert far.parent is not None  # found by its path
    assert far.parent.path == parent.path
    lines = (alone / "journal.jsonl").read_text().replace(experiment.name, "nowhere")
    (alone / "journal.jsonl").write_text(lines)
    with pytest.raises(FileNotFoundError, match="was forked from"):
        _ = Result.from_path(alone).parent
    assert len(Result.from_path(alone).metrics_dataframe) == 4


def test_the_command(
    parent: Result, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(parent.path).parents[1]
    monkeypatch.setenv("LOCKSTEP_STORAGE", str(root))
    options = ["--set", "by=100", "--set", "nested.a=2", "--set", "new=x", "--name", "wild"]
    assert cli.main(["fork", f"{parent.path}@4", *options]) == 0
    shown = capsys.readouterr()
    assert f"is a fork of {parent.path} at step 4." in shown.out
    assert "--set new=x: the parent's config has no new (it has by, steps, nested)" in shown.err
    fork = Result.from_path("wild")
    assert fork.config == {"by": 100, "steps": 6, "nested": {"a": 2}, "new": "x"}
    assert list(fork.metrics_dataframe["total"]) == [104, 204]
    assert cli.main(["ls", "--tree", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)
    depths = {one["path"]: one["depth"] for one in runs}
    assert (depths[parent.path], depths[fork.path]) == (0, 1)
    assert cli.main(["ls", "--tree"]) == 0
    assert "└ @4 wild" in capsys.readouterr().out
    assert cli.main(["show", "wild"]) == 0
    assert f"parent:      {parent.path} at step 4" in capsys.readouterr().out
    assert cli.main(["plot", "wild", "total", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert [y for _, y in line["points"]] == [1, 2, 3, 4, 104, 204]
    assert cli.main(["fork", f"{parent.path}@3"]) == 1
    assert capsys.readouterr().err.startswith("lockstep fork: ")


def test_the_command_s_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert split_step("digits@12") == ("digits", 12)
    assert split_step("me@host") == ("me@host", None)
    assert split_step("@12") == ("@12", None)
    config = {"a.b": 1, "c": 2}
    assert changed(config, ["a.b=3", "c=[1, 2]"]) == {"a.b": 3, "c": [1, 2]}
    assert changed(config, ["c=True"])["c"] is True
    assert changed(config, ["c=1e-4"])["c"] == 1e-4
    assert changed(config, ["c=a=b"])["c"] == "a=b"
    assert config == {"a.b": 1, "c": 2}
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match=r"--set c.d=1: c is 2, not a dict"):
        changed(config, ["c.d=1"])


def test_datasets_continue_where_the_parent_was(tmp_path: Path) -> None:
    from lockstep import data

    def read(config: dict[str, Any]) -> None:
        batches = train.get_dataset_shard("train").iter_batches(batch_size=2)
        for step, batch in enumerate(batches, 1):
            saved = train.Checkpoint.from_dict({}) if step == 2 else None
            train.report({"rows": list(batch["item"])}, checkpoint=saved)

    trainer = DataParallelTrainer(
        read,
        datasets={"train": data.from_items(list(range(8)))},
        run_config=RunConfig(verbose=0, storage_path=str(tmp_path)),
    )
    whole = trainer.fit()
    fork = DataParallelTrainer.fork(whole.path).fit()
    assert list(map(list, fork.metrics_dataframe["rows"])) == [[4, 5], [6, 7]]
    records = RunRecords(open_storage(whole.path))
    assert choose_fork(open_storage(whole.path), 2).header == records.run
