"""The ``lockstep`` command, on live runs in processes of their own and on runs that have ended."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest
from pyarrow import fs

import lockstep
from lockstep import cli, train, tune
from lockstep.cli import stack
from lockstep.engine.attach import ATTACH_SIGNAL, StackRequest, is_worker, start_ticks
from lockstep.errors import EngineError
from lockstep.journal import Journal
from lockstep.journal.lock import Lock
from lockstep.journal.records import newest_run
from lockstep.observe import stacks
from lockstep.run_layout import ENVIRONMENT_FILE
from lockstep.storage import open_storage
from tests.engine.driving import wait_until
from tests.integration.runs import failure, fit
from tests.repository import SRC

LIVE = """
import sys, time
from lockstep import train

def wait_for_data():
    while True:
        time.sleep(1000)

def train_func():
    train.report({"loss": 0.5}, checkpoint=train.Checkpoint.from_dict({"a": 1}))
    rank = train.get_context().get_world_rank()
    print("up", end="", flush=True)
    if rank == 1:
        wait_for_data()
    train.report({"loss": 0.25})

filesystem = None
if "remote" in sys.argv:
    from pyarrow import fs
    filesystem = fs.SubTreeFileSystem(sys.argv[1], fs.LocalFileSystem())
train.DataParallelTrainer(
    train_func,
    scaling_config=train.ScalingConfig(num_workers=3),
    run_config=train.RunConfig(
        verbose=0, name="live", storage_path="runs" if filesystem else sys.argv[1],
        storage_filesystem=filesystem,
    ),
).fit()
"""


@contextmanager
def live_run(
    directory: Path, *arguments: str, logs: str = "*/live/*"
) -> Iterator[subprocess.Popen[str]]:
    """A script whose ranks 0 and 2 wait at a report for rank 1."""
    script = directory / "live.py"
    script.write_text(LIVE)
    (directory / "tmp").mkdir()
    driver = subprocess.Popen(
        [sys.executable, str(script), str(directory / "out"), *arguments],
        env={**os.environ, "PYTHONPATH": str(SRC), "TMPDIR": str(directory / "tmp")},
        text=True,
    )

    def up() -> bool:
        assert driver.poll() is None
        found = list(directory.glob(f"{logs}/logs/rank_*.log"))
        return len(found) == 3 and all("up" in log.read_text() for log in found)

    try:
        wait_until(up)
        yield driver
    finally:
        driver.kill()
        driver.wait()


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Something that runs and is no worker of a run."""
    started = subprocess.Popen(command, stdout=subprocess.PIPE)
    with started:
        try:
            yield started
        finally:
            started.kill()


def stacks_of(run: str) -> str:
    """What is printed once every rank has come to where it stays."""
    while True:
        with redirect_stdout(io.StringIO()) as printed:
            assert cli.main(["stack", run]) == 0
        text = printed.getvalue()
        if "Ranks 0 and 2" in text and "in wait_for_data" in text:
            return text


def run_directory(directory: Path) -> Path:
    (found,) = directory.glob("out/live/*_0_*")
    return found


def newest_attempt(run: Path) -> dict[str, object]:
    records = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return next(record for record in reversed(records) if record["event"] == "attempt")


# ------------------------------------------------------------------------------------------- stack


def test_stack_prints_where_every_rank_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_run(tmp_path) as driver:
        run = run_directory(tmp_path)
        printed = stacks_of(str(run))
        script = str(tmp_path / "live.py")
        assert re.fullmatch(
            rf"""Ranks 0 and 2 \(pid \d+, \d+\)
Stack \(most recent call last\):
  File "{script}", line 15, in train_func
    train.report\(\{{"loss": 0.25\}}\)
  File ".*/lockstep/train/api.py", line \d+, in report
    .*

Rank 1 \(pid \d+\)
Stack \(most recent call last\):
  File "{script}", line 14, in train_func
    wait_for_data\(\)
  File "{script}", line 7, in wait_for_data
    time.sleep\(1000\)

""",
            printed,
        ), printed
        # Again, and under its other names.
        monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path / "out"))
        trial_id = "_".join(run.name.split("_")[1:3])
        for name in ("live", trial_id, trial_id[:5], f"DataParallelTrainer_{trial_id}", run.name):
            assert stacks_of(name) == printed
        assert cli.main(["show", str(run.parent)]) == 0
        assert "state:       running\n" in capsys.readouterr().out
        assert driver.poll() is None
        # Only whoever asked gets the answer.
        assert [log.read_text() for log in run.glob("logs/*")] == ["up"] * 3

    # The driver was killed; its workers end, and the run says so.
    attempt = newest_attempt(run)
    workers = attempt["workers"]
    assert isinstance(workers, list)
    wait_until(lambda: not any(Path("/proc", str(worker["pid"])).exists() for worker in workers))
    assert cli.main(["stack", str(run)]) == 1
    error = capsys.readouterr().err
    assert re.search(r"no worker of the run \S+ answers: process \d+ has ended\.\n$", error)
    assert cli.main(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert (
        f"unfinished; no driver runs; resume it with DataParallelTrainer.restore('{run}')" in shown
    )


def test_stack_of_a_run_on_remote_storage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_run(tmp_path, "remote", logs="tmp/lockstep-run-*"):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
        stacks_of("live")
        # The copy on storage leads to it, too.
        copy = tmp_path / "out/runs/live"
        wait_until(lambda: bool(list(copy.glob("*/journal.jsonl"))))
        remote = fs.SubTreeFileSystem(str(tmp_path / "out"), fs.LocalFileSystem())
        storage = newest_run(open_storage("runs/live", remote))
        monkeypatch.setattr(stack, "find_run", lambda text, pieces: storage)
        stacks_of("remote")
    (spool,) = (tmp_path / "tmp").glob("lockstep-run-*")
    spool.rename(spool.with_name("elsewhere"))
    assert cli.main(["stack", "remote"]) == 1
    assert "does not run on this machine; its workers were on " in capsys.readouterr().err


def test_a_rank_that_cannot_answer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_run(tmp_path):
        run = run_directory(tmp_path)
        stacks_of(str(run))
        workers = newest_attempt(run)["workers"]
        assert isinstance(workers, list)
        monkeypatch.setattr(stacks, "ANSWER_S", 1.5)
        os.kill(workers[1]["pid"], signal.SIGSTOP)
        assert cli.main(["stack", str(run)]) == 1
        out, err = capsys.readouterr()
    assert "Ranks 0 and 2" in out
    assert "rank 1: process" in err
    assert "has written nothing within 1.5 s; it may be stopped." in err


def test_a_run_that_has_ended_has_no_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    result = fit(lambda: None)
    assert cli.main(["stack", result.path]) == 1
    assert re.fullmatch(
        r"lockstep stack: the run DataParallelTrainer_\w+ is not running: "
        r"its state is 'finished'\.\n",
        capsys.readouterr().err,
    )


def journal(
    directory: Path,
    *,
    hostname: str,
    pid: int,
    when: float | None = None,
    cluster: str = "",
    others: Mapping[str, int] | None = None,
) -> str:
    """The books of a run that seems to be live."""
    directory.mkdir(exist_ok=True)
    books = Journal(str(directory / "journal.jsonl"))
    books.append(
        "run", trial_id="abcde_00000", trainer="T", experiment_name="x", time=1.0, config={}
    )
    pids = {hostname: pid, **(others or {})}
    workers = [
        {"rank": rank, "pid": number, "hostname": name, "node_ip": ""}
        for rank, (name, number) in enumerate(pids.items())
    ]
    attempt = {"cluster": cluster} if cluster else {}
    began = time.time() if when is None else when
    books.append("attempt", attempt=1, workers=workers, time=began, **attempt)
    books.close()
    return str(directory)


def test_workers_of_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = journal(tmp_path, hostname="far.away", pid=os.getpid())
    assert cli.main(["stack", run]) == 1
    err = capsys.readouterr().err
    assert f"has workers on far.away, and this is {socket.gethostname()}; " in err
    assert "; run this command there." in err
    assert cli.main(["show", run]) == 0
    assert "unfinished; look on far.away whether it still runs" in capsys.readouterr().out


def test_workers_of_several_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = {socket.gethostname(): os.getpid()}  # no worker either
    run = journal(tmp_path, hostname="far.away", pid=os.getpid(), others=here)
    assert cli.main(["stack", run]) == 1
    assert "it is on far.away; run this command there, too" in capsys.readouterr().err


def test_workers_of_a_cluster_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    run = journal(tmp_path, hostname="far.away", pid=os.getpid(), cluster=address)
    assert cli.main(["stack", run]) == 1
    error = capsys.readouterr().err
    assert "answers: it is on far.away, and " in error
    # The second where Ray is not installed, or stands for lockstep.
    assert f"the Ray cluster at {address} does not answer" in error or "this Python" in error
    assert (
        cli.main(["stack", journal(tmp_path / "x", hostname="far.away", pid=1, cluster="?")]) == 1
    )
    assert "it is on far.away, and " in capsys.readouterr().err


def test_a_process_that_is_no_worker_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with process("sleep", "1000") as other:
        run = journal(tmp_path, hostname=socket.gethostname(), pid=other.pid)
        assert cli.main(["stack", run]) == 1
        assert f"process {other.pid} is not a worker's own process." in capsys.readouterr().err
        assert not is_worker(other.pid, start_ticks(other.pid))
        assert other.poll() is None


@pytest.mark.parametrize("pid", [2**70, -1, 0, 1])
def test_a_number_that_is_no_worker_s(
    pid: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = journal(tmp_path, hostname=socket.gethostname(), pid=pid)
    assert cli.main(["stack", run]) == 1
    assert f"process {pid} " in capsys.readouterr().err


def test_a_number_that_was_given_to_another_process() -> None:
    with (
        process("sleep", "1000") as other,
        pytest.raises(EngineError, match="is another process now"),
    ):
        StackRequest(other.pid, start_ticks(other.pid) - 1)
    with pytest.raises(EngineError, match=f"process {other.pid} has ended"):
        StackRequest(other.pid, 1)


def test_a_worker_that_does_not_expect_the_signal_is_spared() -> None:
    code = "import sys, time; '''lockstep.engine.forkserver'''; print(flush=True); time.sleep(1000)"
    with process(sys.executable, "-c", code) as other:
        assert other.stdout is not None
        other.stdout.read(1)
        with pytest.raises(EngineError, match="is not ready to show its stacks"):
            StackRequest(other.pid, start_ticks(other.pid))
        assert other.poll() is None


def test_another_users_process_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, number: int) -> None:
        assert number == ATTACH_SIGNAL
        raise PermissionError

    monkeypatch.setattr("lockstep.engine.attach._check", lambda pid, started: None)
    monkeypatch.setattr("lockstep.engine.attach._open_file", lambda pid: os.memfd_create("any"))
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with pytest.raises(EngineError, match="belongs to another user"):
        StackRequest(os.getpid(), start_ticks(os.getpid()))


def test_a_run_in_process_has_no_worker_to_ask(capsys: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        train.report({"asked": cli.main(["stack", train.get_context().get_trial_dir()])})

    assert fit(train_func, workers=0).metrics["asked"] == 1
    assert "is not a worker's own process" in capsys.readouterr().err


def test_before_the_workers_are_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    books = Journal(str(tmp_path / "journal.jsonl"))
    books.append("run", trial_id="abcde_00000", trainer="T", experiment_name="x", time=1.0)
    books.close()
    assert cli.main(["stack", str(tmp_path)]) == 1
    assert "are not up yet; try again." in capsys.readouterr().err


# -------------------------------------------------------------------------------------------- show


def test_show_a_finished_run(capsys: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        for step in range(2):
            checkpoint = train.Checkpoint.from_dict({"step": step})
            train.report({"loss": 0.5 - step / 4, "step": step}, checkpoint=checkpoint)

    result = fit(train_func, workers=1, name="shown")
    assert cli.main(["show", "shown"]) == 0
    shown = capsys.readouterr().out
    assert f"run:         {'_'.join(Path(result.path).name.split('_')[:3])} in shown\n" in shown
    assert "state:       finished\n" in shown
    assert f"path:        {result.path}\n" in shown
    assert re.search(r"attempts:    1, with 1 worker since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n", shown)
    assert "reports:     2\n" in shown
    assert "metrics:     loss=0.25 step=1\n" in shown
    assert "checkpoints: 2, the newest is checkpoint_000001\n" in shown
    assert not re.search("^error:", shown, re.MULTILINE)


def test_show_a_failed_run(capsys: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        os._exit(5)

    error = failure(train_func, workers=1, max_failures=1)
    assert error.result is not None
    assert cli.main(["show", error.result.path]) == 0
    shown = capsys.readouterr().out
    assert "state:       failed\n" in shown
    assert "attempts:    2, the last one with 1 worker since " in shown
    assert (
        "error:       attempt 2: Rank 0 exited with code 5 before its function returned.\n" in shown
    )


# --------------------------------------------------------------------------------------- arguments


def test_what_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (
        ("no_such_run", "is neither a directory nor a name or trial id below "),
        (str(tmp_path), "is not the directory of a run"),
        (str(tmp_path / "none"), "is neither a directory nor a name or trial id below "),
        ("../none", "is neither a directory nor a name or trial id below "),
        ("nope://bucket/run", "unknown scheme"),
    ):
        assert cli.main(["show", name]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("lockstep show: ")
        assert words in err
        assert err.count("\n") == 1


def test_a_results_root_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path / "none"))
    assert cli.main(["stack", "x"]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    result = fit(lambda: train.report({"x": 1}), workers=1, storage_path=str(tmp_path))
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "lockstep", "show", result.path],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            stdout=nobody,
            stderr=subprocess.PIPE,
            timeout=150,
        )
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("arguments", [[], ["stack"], ["stack", "a", "b"], ["dance", "a"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: lockstep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("logs a --grep (", "argument --grep: '(' is not a regular expression: "),
        ("logs a -n -1", "argument -n/--lines: -1 is less than 0"),
        ("logs a --rank x", "argument --rank: 'x' is not a whole number"),
        ("ui --port 65536", "argument --port: 65536 is greater than 65535"),
        ("ui --port -1", "argument --port: -1 is less than 0"),
        ("plot a loss --width 0", "argument --width: 0 is less than 1"),
        ("replay a --step -2", "argument --step: -2 is less than 1"),
        ("verify a --steps 0", "argument --steps: 0 is less than 1"),
        ("fork a --set lr", "argument --set: 'lr' is not KEY=VALUE, such as lr=1e-4"),
    ],
)
def test_wrong_values(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments.split())
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_the_command_starts_quickly_and_loads_nothing() -> None:
    code = (
        "import sys; sys.argv = ['lockstep', '--version']; import runpy\n"
        "try: runpy.run_module('lockstep', run_name='__main__')\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print({'numpy', 'pandas', 'pyarrow', 'rich', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout.splitlines() == [f"lockstep {lockstep.__version__}", "set()"], done.stderr


# ------------------------------------------------------------------------------------- experiments


def trial(config: dict[str, float]) -> None:
    train.report({"loss": config["x"] / 2})
    if config["x"] == 3:
        raise ValueError("three is too much")


def test_show_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tune.Tuner(
        trial,
        param_space={"x": tune.grid_search([1.0, 2.0, 3.0])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=train.RunConfig(name="e", verbose=0),
    ).fit()
    capsys.readouterr()
    assert cli.main(["show", "e"]) == 0
    shown = capsys.readouterr().out
    best = Path(grid.get_best_result().path).name.split("_")
    assert re.match(
        rf"""experiment:  e
state:       finished
path:        {grid.experiment_path}
trials:      3: 2 TERMINATED, 1 ERROR
best:        trial {"_".join(best[1:3])}, the lowest loss
trial:       \w+_00000 TERMINATED 1 report loss=0.5 \(x=1\)
             \w+_00001 TERMINATED 1 report loss=1 \(x=2\)
             \w+_00002 ERROR 1 report loss=1.5 \(x=3\)
error:       trial \w+_00002: Rank 0 failed with ValueError: three is too much\.
$""",
        shown,
    ), shown
    # A trial is shown as the run that it is, and restored with its experiment.
    assert cli.main(["show", grid[0].path]) == 0
    assert "state:       finished\n" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="is a trial of an experiment") as raised:
        train.DataParallelTrainer.restore(grid[0].path)
    assert f"Tuner.restore({grid.experiment_path!r})" in str(raised.value)
    assert "killed" not in str(raised.value)


def test_show_an_experiment_whose_driver_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tune.Tuner(
        trial,
        param_space={"x": 1.0},
        run_config=train.RunConfig(name="e", storage_path=str(tmp_path), verbose=0),
    ).fit()
    for path in (tmp_path / "e" / "experiment.jsonl", Path(grid[0].path) / "journal.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    for place in (tmp_path / "e", grid[0].path):
        assert cli.main(["show", str(place)]) == 0
        advice = f"resume it with Tuner.restore('{tmp_path / 'e'}').fit()"
        assert advice in capsys.readouterr().out
    lock = Lock(str(tmp_path / "e" / "experiment.jsonl"))
    assert cli.main(["show", str(tmp_path / "e")]) == 0
    assert "state:       running\n" in capsys.readouterr().out
    lock.release()


# ------------------------------------------------------------------------------------------- alive


def test_a_clock_that_was_set_does_not_end_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the clock went forward by an hour, everything was recorded an hour too early."""
    with live_run(tmp_path):
        run = run_directory(tmp_path)
        journal = run / "journal.jsonl"
        attempt = newest_attempt(run)
        early = {**attempt, "time": float(str(attempt["time"])) - 3600}
        lines = journal.read_text().replace(json.dumps(attempt, separators=(",", ":")), "")
        journal.with_suffix(".new").write_text(
            lines.replace("\n\n", f"\n{json.dumps(early, separators=(',', ':'))}\n")
        )
        journal.with_suffix(".new").replace(journal)
        assert newest_attempt(run)["time"] == early["time"]
        assert cli.main(["show", str(run)]) == 0
        assert "state:       running\n" in capsys.readouterr().out
        assert "in wait_for_data" in stacks_of(str(run))


def test_a_run_that_another_user_drives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = journal(tmp_path, hostname=socket.gethostname(), pid=os.getpid())
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    assert cli.main(["show", run]) == 0
    shown = capsys.readouterr().out
    assert "unfinished; no driver runs; its directory belongs to another user\n" in shown
    assert "restore" not in shown


# ------------------------------------------------------------------------------------ hostile text

NASTY = "\x1b[2J\x1b]0;title\x07\r\n\x9b31m\u202e\ud800 evil"


KEPT = ("event", "status", "trial_id", "directory", "hostname")


def nasty(value: object) -> object:
    if isinstance(value, str):
        return value + NASTY
    if isinstance(value, dict):
        return {key: item if key in KEPT else nasty(item) for key, item in value.items()}
    return [nasty(item) for item in value] if isinstance(value, list) else value


def assert_inert(text: str) -> None:
    assert "evil" in text
    assert all(character.isprintable() or character == "\n" for character in text), repr(text)


@pytest.mark.parametrize("what", ["run", "experiment"])
def test_text_of_others_does_not_reach_the_terminal(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "run":
        error = failure(lambda: (train.report({"a": "b"}), 1 / 0), workers=1)
        place = Path(error.result.path)  # type: ignore[union-attr]
    else:
        tuner = tune.Tuner(
            trial,
            param_space={"x": tune.grid_search([1.0, 3.0])},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=train.RunConfig(name="e", storage_path=str(tmp_path), verbose=0),
        )
        place = Path(tuner.fit().experiment_path)
    for path in place.rglob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(nasty(line)) + "\n" for line in lines))
    capsys.readouterr()
    for environment in place.glob(ENVIRONMENT_FILE):
        environment.write_text(json.dumps(nasty(json.loads(environment.read_text()))))
    for command in (["ls"], ["show"], ["stack"], ["env"], ["compare", str(place)]):
        cli.main([*command, str(place)])
        assert_inert("".join(capsys.readouterr()))
    cli.main(["show", f"no such run {NASTY}"])
    assert_inert(capsys.readouterr().err)
