"""Running a part of a run again: the same for a State, and a difference that is named."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep import cli, train
from lockstep.testing import replay, verify_run
from lockstep.train import (
    CheckpointConfig,
    DataParallelTrainer,
    Result,
    ScalingConfig,
    TrainingFailedError,
)
from tests.console.pseudo_terminal import on_terminal
from tests.integration.runs import fit


def walk(config: dict[str, Any]) -> None:
    """A random walk, a checkpoint at every third step."""
    random.seed(train.get_context().get_world_rank())
    state = train.State(at=0.0, step=0, rng=config["rng"])
    state.restore()
    for step in range(state.step + 1, 9):
        state.at += random.random()
        state.step = step
        train.report(
            {"at": state.at, "seconds": random.random()},
            checkpoint=state if step % 3 == 0 else None,
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Result:
    place = str(tmp_path_factory.mktemp("walk"))
    return fit(walk, config={"rng": True}, storage_path=place, name="walk")


def test_a_state_comes_out_the_same(run: Result) -> None:
    before = (Path(run.path) / "journal.jsonl").read_bytes()
    found = verify_run(run.path)
    assert (found.ok, found.step, found.steps) == (True, 6, 2)
    assert "2 report(s) of every rank are the same, bit by bit" in str(found)
    longer = verify_run(run.path, step=3, steps=4)
    assert (longer.ok, longer.steps, longer.states) == (True, 4, 1)
    assert "4 report(s) of every rank and 1 checkpoint(s) are the same" in str(longer)
    assert (Path(run.path) / "journal.jsonl").read_bytes() == before


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    result = fit(walk, config={"rng": False}, workers=1, storage_path=str(tmp_path))
    found = verify_run(result.path, step=3)
    assert not found.ok
    assert "run again from step 3: at step 4, at of rank 0 is" in str(found)
    assert verify_run(result.path, step=3, steps=2, ignore=["at"]).ok


def test_a_checkpoint_that_differs(tmp_path: Path) -> None:
    def hidden() -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint else 0
        for step in range(start + 1, 4):
            secret = 0 if checkpoint is None else 1
            kept = train.Checkpoint.from_dict({"step": step, "secret": secret})
            train.report({"step": step}, checkpoint=kept)

    result = fit(hidden, workers=1, storage_path=str(tmp_path))
    found = verify_run(result.path, step=1)
    assert found.difference == "in the checkpoint of step 2, secret is 1 and was 0."


def test_what_cannot_be_verified(run: Result, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint at step 4; it has 3, 6"):
        verify_run(run.path, step=4)
    with pytest.raises(ValueError, match=r"verify_run\(steps=0\)"):
        verify_run(run.path, steps=0)

    def end() -> None:
        train.report({}, checkpoint=train.Checkpoint.from_dict({}))

    keep = CheckpointConfig(num_to_keep=1)
    result = fit(end, workers=1, storage_path=str(tmp_path), checkpoint_config=keep)
    with pytest.raises(ValueError, match="no report after step 1"):
        verify_run(result.path, step=1)


def test_a_run_that_changed_its_size(tmp_path: Path) -> None:
    once = tmp_path / "once"

    def count() -> None:
        state = train.State(step=0)
        state.restore()
        size = train.get_context().get_world_size()
        for step in range(state.step + 1, 7):
            if step == 4 and size == 2 and not once.exists():
                once.touch()
                raise RuntimeError("half of the machine is gone")
            state.step = step
            train.report({"step": step}, checkpoint=state)

    with pytest.raises(TrainingFailedError) as failed:
        fit(count, workers=2, storage_path=str(tmp_path))
    assert failed.value.result is not None
    path = failed.value.result.path
    one = ScalingConfig(num_workers=1)
    DataParallelTrainer.restore(path, scaling_config=one).fit()
    found = verify_run(path, step=2, steps=3)
    assert "step 4 was run by 1 worker(s), and here by 2: the run changed its" in str(found)
    assert verify_run(path, step=3, steps=3).ok


@pytest.mark.parametrize("workers", [1, 2])
def test_a_probe_sees_the_variables_of_the_step(tmp_path: Path, workers: int) -> None:
    result = fit(walk, config={"rng": True}, workers=workers, storage_path=str(tmp_path))
    seen, last = tmp_path / "seen", workers - 1

    def probe(variables: dict[str, Any]) -> None:
        seen.write_text(json.dumps([variables["step"], variables["state"].at]))

    found = replay(result.path, step=5, rank=last, probe=probe)
    assert (found.ok, found.step, found.steps) == (True, 3, 2)
    frame = result.rank_dataframe
    row = frame[(frame["rank"] == last) & (frame["training_iteration"] == 5)].iloc[0]
    assert json.loads(seen.read_text()) == [5, row["at"]]


def test_what_cannot_be_replayed(run: Result) -> None:
    with pytest.raises(ValueError, match="no report of step 9; it has 1 to 8"):
        replay(run.path, step=9, probe=print)
    with pytest.raises(ValueError, match=r"replay\(rank=2\): the step has ranks 0 to 1"):
        replay(run.path, step=5, rank=2, probe=print)
    fork = DataParallelTrainer.fork(run.path, step=3).fit()
    shutil.rmtree(Path(fork.path) / "checkpoint_000000")
    with pytest.raises(ValueError, match=r"is a fork, .* of step 3 any more, .*walk/"):
        replay(fork.path, step=4, probe=print)


def test_a_run_is_replayed_from_its_beginning(run: Result, tmp_path: Path) -> None:
    found = replay(run.path, step=2, ignore=["seconds"])
    assert (found.ok, found.step, found.steps) == (True, 0, 2)
    assert "run again from the beginning: 2 report(s) of every rank" in str(found)
    assert verify_run(run.path, step=0, steps=4, ignore=["seconds"]).states == 1

    def dice(config: dict[str, Any]) -> None:
        if config["seed"] is not None:
            random.seed(config["seed"])
        train.report({"value": random.random()})

    for seed in (7, None):
        result = fit(dice, config={"seed": seed}, workers=1, storage_path=str(tmp_path))
        found = verify_run(result.path)
        assert (found.ok, found.step) == (seed is not None, 0)
    assert "at step 1, value of rank 0 is" in str(found)
    assert "the function has to set its seeds" in str(found)


def test_the_command(run: Result, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", f"{run.path}@6"]) == 0
    assert f"{run.path}, run again from step 6: 2 report(s)" in capsys.readouterr().out
    assert cli.main(["verify", run.path, "--steps", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["steps"], found["difference"]) == (True, 1, None)


def test_a_result_goes_back(run: Result) -> None:
    found = run.replay(5, ignore=["seconds"])
    assert (found.ok, found.step, found.steps) == (True, 3, 2)


def test_the_command_shows_variables(run: Result, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", run.path, "--step", "5", "--rank", "1"]) == 0
    shown = capsys.readouterr().out
    assert "step    5\n" in shown
    assert "2 report(s) of every rank are the same, bit by bit" in shown
    assert cli.main(["replay", run.path, "--step", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert (found["variables"]["step"], found["variables"]["config"]) == ("5", "{'rng': True}")


DEBUGGED = """
import sys
from lockstep import cli
sys.exit(cli.main(["replay", sys.argv[1], "--step", "5", "--rank", sys.argv[2], "--pdb"]))
"""


@pytest.mark.parametrize(
    ("commands", "compared"), [("p step\nn\nc\n", True), ("p step\nq\n", False)]
)
def test_the_debugger_of_one_rank(tmp_path: Path, commands: str, compared: bool) -> None:
    result = fit(walk, config={"rng": True}, workers=1, storage_path=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", DEBUGGED, result.path, "0"],
        input=commands,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "(Pdb) 5\n" in done.stdout, done.stderr
    expected = "2 report(s) of every rank are the same" if compared else "the debugger was left"
    assert expected in done.stdout
    assert done.returncode == (0 if compared else 1)


def test_the_debugger_of_a_rank_among_others(run: Result) -> None:
    command = ["replay", run.path, "--step", "5", "--rank", "1", "--pdb"]
    code = f"import sys; from lockstep import cli; sys.exit(cli.main({command!r}))"
    with on_terminal(code, types=True) as terminal:
        terminal.wait_for("(Pdb rank 1)")
        terminal.type_line("p step, 'seen'")
        terminal.wait_for("(5, 'seen')")
        terminal.type_line("c")
        terminal.wait_for("2 report(s) of every rank are")
        assert terminal.wait() == 0
