"""Reading a run or an experiment that somebody else has written executes nothing of theirs."""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import train, tune
from lockstep.errors import RemoteError
from lockstep.run_layout import JOURNAL_FILE
from tests.integration.runs import failure, run_script


class Planted(Exception):
    """An exception of the user's script, which the reader does not have."""


class Remembers(tune.Callback):
    """A callback whose state is kept as a pickle."""

    def get_state(self) -> dict[str, Any]:
        return {"seen": 1}


def train_func() -> None:
    train.report({"loss": 1.0}, checkpoint=train.Checkpoint.from_dict({"x": 1}))
    train.log({"step": 1})
    raise Planted("not today")


def trial(config: dict[str, Any]) -> None:
    train.report({"loss": config["x"]}, checkpoint=train.Checkpoint.from_dict({"x": 1}))
    if config["x"]:
        raise Planted("not today")


class _Plant:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def plant(directory: Path, marker: Path) -> int:
    """Put a pickle that touches ``marker`` into every file; returns into how many."""
    hostile = pickle.dumps(_Plant(marker))
    text = base64.b64encode(hostile).decode()
    count = 0
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            continue
        count += 1
        if path.suffix == ".pkl":
            path.write_bytes(hostile)
        elif path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            planted = (json.dumps(_planted(line, text)) + "\n" for line in lines)
            path.write_text("".join(planted))
        elif path.suffix == ".json":
            path.write_text(json.dumps(_planted(json.loads(path.read_text() or "{}"), text)))
    return count


def _planted(value: Any, text: str) -> Any:
    """The pickle beside each value, under every name that may be loaded."""
    if isinstance(value, list):
        return [_planted(item, text) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {key: _planted(item, text) for key, item in value.items()}
    names = ("pickle", "live") if "message" in value else ()
    return {**inner, **dict.fromkeys(names, text)}


READ = """
import contextlib, io
from lockstep import cli, train, tune
from lockstep.train import DataParallelTrainer

def look(result):
    print(type(result.error).__name__, str(result.error)[:40])
    repr(result), result.metrics, result.checkpoint, result.best_checkpoints, result.config
    result.metrics_dataframe, result.rank_dataframe, result.log_dataframe
    result.attempts, result.worker_failures
    result.get_best_checkpoint("loss", "min")
    if result.checkpoint is not None:
        result.checkpoint.get_metadata()
        result.checkpoint.to_directory()
        with result.checkpoint.as_directory():
            pass
"""


def test_looking_at_a_run_executes_nothing(tmp_path: Path) -> None:
    error = failure(train_func, callbacks=[Remembers()], storage_path=tmp_path / "runs", name="a")
    assert isinstance(error.__cause__, Planted)  # in the driver it is what was raised
    assert error.result is not None
    run, marker = Path(error.result.path), tmp_path / "executed"
    assert plant(run, marker) > 6
    done = run_script(
        tmp_path,
        READ
        + f"""
look(train.Result.from_path({str(run)!r}))
look(train.Result.from_path({str(run.parent)!r}))
assert DataParallelTrainer.can_restore({str(run)!r})
for command in ("show", "stack"):
    with contextlib.redirect_stderr(io.StringIO()):
        cli.main([command, {str(run)!r}])
""",
    )
    assert "RemoteError Planted: not today" in done.stdout
    assert not marker.exists()
    # The plants work: what says that it trusts a directory does load them.
    with pytest.raises(Exception, match=r"."):
        train.DataParallelTrainer.restore(run)
    assert marker.exists()


def test_looking_at_an_experiment_executes_nothing(tmp_path: Path) -> None:
    tuner = tune.Tuner(
        trial,
        param_space={"x": tune.grid_search([0, 1])},
        run_config=train.RunConfig(
            name="e", storage_path=str(tmp_path / "runs"), verbose=0, callbacks=[Remembers()]
        ),
    )
    grid = tuner.fit()
    assert isinstance(grid.errors[0], Planted)
    experiment, marker = tmp_path / "runs" / "e", tmp_path / "executed"
    assert plant(experiment, marker) > 12
    done = run_script(
        tmp_path,
        READ
        + f"""
analysis = tune.ExperimentAnalysis({str(experiment)!r}, "loss", "min")
for trial in analysis.trials:
    look(trial.result)
grid = analysis.grid
list(grid), grid.errors, grid.get_dataframe(), grid.get_best_result(), repr(grid)
analysis.dataframe(), analysis.best_config, analysis.best_checkpoint
tune.Tuner.can_restore({str(experiment)!r})
cli.main(["show", {str(experiment)!r}])
with contextlib.redirect_stderr(io.StringIO()):
    cli.main(["stack", {str(experiment)!r}])
""",
    )
    assert "RemoteError Planted: not today" in done.stdout
    assert not marker.exists()


def test_the_process_that_wrote_a_run_has_its_own_exceptions(tmp_path: Path) -> None:
    error = failure(train_func, storage_path=tmp_path, name="a")
    assert error.result is not None
    again = train.Result.from_path(error.result.path)
    assert isinstance(again.error, Planted)
    # A copy with another error's id is that error, and no other process knows the id.
    other = Path(shutil.copytree(error.result.path, tmp_path / "copy"))
    done = run_script(
        tmp_path,
        f"""
        from lockstep import train
        error = train.Result.from_path({str(other)!r}).error
        print(type(error).__name__)
        raise error
        """,
        check=False,
    )
    assert done.stdout == "RemoteError\n"
    if sys.version_info >= (3, 11):  # the first Python that shows notes
        assert 'raise Planted("not today")' in done.stderr
    assert (other / JOURNAL_FILE).read_text().count('"pickle"') == 0


def test_an_exception_of_imported_code_comes_back_in_its_type(tmp_path: Path) -> None:
    def fails() -> None:
        json.loads("{")

    def dies() -> None:
        import os

        os._exit(7)

    for function, kind in ((fails, "JSONDecodeError"), (dies, "WorkerDiedError")):
        error = failure(function, workers=1)
        assert error.result is not None
        done = run_script(
            tmp_path,
            f"""
            import json
            from lockstep import train
            error = train.Result.from_path({error.result.path!r}).error
            print(type(error).__name__, error.args, vars(error).get("exitcode"))
            """,
        )
        assert done.stdout.startswith(kind), done.stdout
    assert done.stdout.endswith(" 7\n")
    assert not isinstance(error.__cause__, RemoteError)


def bad_value(kind: str) -> Any:
    if kind == "nesting":
        value: Any = 1
        for _ in range(1000):
            value = [value]
        return value
    return 10**5000 if kind == "integer" else "a\ud800"


@pytest.mark.parametrize("kind", ["integer", "text", "nesting"])
@pytest.mark.parametrize("call", [train.report, train.log])
def test_a_metric_that_no_reader_takes_fails_its_rank_and_nothing_else(
    kind: str, call: Callable[[Any], None]
) -> None:
    def function() -> None:
        train.report({"loss": 1.0})
        rank = train.get_context().get_world_rank()
        call({"fine": 1, "bad": bad_value(kind) if rank == 1 else 0})
        train.report({"loss": 2.0})

    error = failure(function, workers=2)
    assert str(error).startswith("Rank 1 of 2 failed with ValueError: metric 'bad"), error
    result = train.Result.from_path(error.result.path)  # type: ignore[union-attr]
    assert list(result.metrics_dataframe["loss"])[:1] == [1.0]
