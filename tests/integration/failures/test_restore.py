"""A run that ended continues: in its own directory, from its newest checkpoint."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.callback import Callback
from lockstep.errors import StorageError
from lockstep.journal import Journal
from lockstep.run_layout import JOURNAL_FILE, TRAINER_FILE
from lockstep.storage import open_storage
from lockstep.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
from lockstep.train.torch import TorchConfig, TorchTrainer
from tests.integration.runs import failure, fit, run_script, trainer
from tests.repository import SRC
from tests.s3 import new_bucket, s3_uri

QUIET = RunConfig(verbose=0)


def count(config: dict[str, Any]) -> None:
    """Counts to ``total`` with a checkpoint a step; fails at ``gate``'s step until it exists."""
    known = train.load_checkpoint()
    print(f"attempt {train.get_context().get_attempt()}")
    for step in range(known["step"] + 1 if known else 0, config["total"]):
        if step == config.get("fail_at") and not os.path.exists(config["gate"]):
            raise RuntimeError(f"at step {step}")
        train.report(
            {"step": step, "size": train.get_context().get_world_size()},
            checkpoint=Checkpoint.from_dict({"step": step}),
        )


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """Six steps, and a failure at the fourth while the gate is not there."""
    return {"total": 6, "fail_at": 3, "gate": str(tmp_path / "gate")}


def failed_run(config: dict[str, Any], **options: Any) -> Result:
    result = failure(count, config=config, **options).result
    assert result is not None
    assert result.metrics_dataframe["step"].tolist() == [0, 1, 2]
    return result


def open_gate(config: dict[str, Any]) -> None:
    Path(config["gate"]).touch()


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def check_whole(result: Result, attempts: list[int]) -> None:
    frame = result.metrics_dataframe
    assert frame["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert frame["attempt"].tolist() == attempts
    assert frame["training_iteration"].tolist() == [1, 2, 3, 4, 5, 6]
    assert frame["checkpoint_dir_name"].tolist() == [f"checkpoint_{n:06}" for n in range(6)]
    assert set(frame["trial_id"]) == {result.metrics["trial_id"]}
    assert frame["time_total_s"].is_monotonic_increasing
    assert [c.to_dict()["step"] for c, _ in result.best_checkpoints] == [0, 1, 2, 3, 4, 5]
    assert (result.state, result.error, result.metrics["done"]) == ("finished", None, True)


class TestGoingOn:
    @pytest.mark.parametrize("where", ["run", "experiment"])
    def test_in_its_own_directory(self, config: dict[str, Any], where: str) -> None:
        first = failed_run(config, name=f"going-on-{where}")
        open_gate(config)
        path = first.log_dir if where == "run" else first.log_dir.parent
        assert DataParallelTrainer.can_restore(path)
        result = DataParallelTrainer.restore(path).fit()
        assert result.path == first.path
        check_whole(result, [1, 1, 1, 2, 2, 2])
        check_whole(Result.from_path(path), [1, 1, 1, 2, 2, 2])
        rows = list(csv.DictReader((result.log_dir / "progress.csv").read_text().splitlines()))
        assert [row["step"] for row in rows] == list("012345")
        lines = (result.log_dir / "result.json").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3, 4, 5]
        assert (result.log_dir / "logs" / "rank_1.log").read_text() == "attempt 1\nattempt 2\n"

    def test_a_failure_after_the_restore_is_the_one_reported(self, config: dict[str, Any]) -> None:
        first = failed_run(config)
        restored = DataParallelTrainer.restore(first.path, train_loop_config={**config, "total": 3})
        assert restored.fit().error is None
        again = DataParallelTrainer.restore(first.path, train_loop_config=config)
        with pytest.raises(train.WorkerGroupError, match=r"at step 3.*in attempt 3"):
            again.fit()
        assert Result.from_path(first.path).state == "failed"

    def test_with_other_arguments_which_are_kept_in_their_turn(
        self, config: dict[str, Any]
    ) -> None:
        def other(config: dict[str, Any]) -> None:
            known = train.load_checkpoint()
            assert known is not None
            size = train.get_context().get_world_size()
            for step in range(known["step"] + 1, known["step"] + 3):
                train.report(
                    {"step": step, "size": size, "lr": config["lr"]},
                    checkpoint=Checkpoint.from_dict({"step": step}),
                )
            if config["lr"] == 1:
                raise RuntimeError("once more")

        first = failed_run(config)
        changed = DataParallelTrainer.restore(
            first.path,
            train_loop_per_worker=other,
            train_loop_config={"lr": 1},
            scaling_config=ScalingConfig(num_workers=1),
        )
        with pytest.raises(train.WorkerGroupError):
            changed.fit()
        kept = DataParallelTrainer.restore(first.path)
        assert (kept.train_loop_config, kept.scaling_config.num_workers) == ({"lr": 1}, 1)
        result = DataParallelTrainer.restore(first.path, train_loop_config={"lr": 2}).fit()
        frame = result.metrics_dataframe
        assert frame["step"].tolist() == [0, 1, 2, 3, 4, 5, 6]
        assert frame["size"].tolist() == [2, 2, 2, 1, 1, 1, 1]
        assert frame["lr"].tolist()[3:] == [1, 1, 2, 2]
        assert result.config == {"lr": 2}
        assert [resize["to"] for resize in result.resizes] == [1]

    def test_a_finished_run_gives_its_result_again(self) -> None:
        first = fit(count, config={"total": 2})
        before = Path(first.path, JOURNAL_FILE).read_bytes()
        again = DataParallelTrainer.restore(first.path).fit()
        assert again.metrics == first.metrics
        assert Path(first.path, JOURNAL_FILE).read_bytes() == before

    def test_a_finished_run_resumes_with_something_new(self) -> None:
        first = fit(count, config={"total": 2})
        longer = DataParallelTrainer.restore(first.path, train_loop_config={"total": 4}).fit()
        assert longer.metrics_dataframe["step"].tolist() == [0, 1, 2, 3]
        assert longer.metrics_dataframe["attempt"].tolist() == [1, 1, 2, 2]

    def test_what_it_was_to_start_from(self, config: dict[str, Any]) -> None:
        def train_func(config: dict[str, Any]) -> None:
            known = train.load_checkpoint()
            assert known is not None
            if not os.path.exists(config["gate"]):
                raise RuntimeError
            train.report({"from": known["step"]})

        first = trainer(train_func, config=config)
        first.resume_from_checkpoint = Checkpoint.from_dict({"step": 41})
        with pytest.raises(train.WorkerGroupError) as raised:
            first.fit()
        assert raised.value.result is not None
        open_gate(config)
        path = raised.value.result.path
        assert DataParallelTrainer.restore(path).fit().metrics["from"] == 41

    def test_a_run_without_a_checkpoint_starts_over(self, config: dict[str, Any]) -> None:
        def train_func(config: dict[str, Any]) -> None:
            assert train.get_checkpoint() is None
            for step in range(2):
                train.report({"step": step})
            if not os.path.exists(config["gate"]):
                raise RuntimeError

        error = failure(train_func, config=config)
        assert error.result is not None
        open_gate(config)
        frame = DataParallelTrainer.restore(error.result.path).fit().metrics_dataframe
        assert frame["step"].tolist() == [0, 1, 0, 1]
        assert frame["attempt"].tolist() == [1, 1, 2, 2]
        assert frame["training_iteration"].tolist() == [1, 2, 1, 2]


class TestWithoutTheScript:
    SECOND = """
        import sys
        from lockstep.train import DataParallelTrainer

        result = DataParallelTrainer.restore(sys.stdin.read()).fit()
        print("ROWS", result.metrics_dataframe[["scale", "step"]].values.tolist())
        """

    @pytest.mark.parametrize("place", ["main", "module"])
    def test_the_function_comes_with_the_run(self, tmp_path: Path, place: str) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        first.mkdir()
        second.mkdir()
        code = """
import os
from lockstep import train

SCALE = 10

class Model:
    def value(self, step):
        return SCALE * step

def train_func(config):
    known = train.load_checkpoint()
    for step in range(known["step"] + 1 if known else 0, 3):
        if step == 2 and not os.path.exists(config["gate"]):
            raise RuntimeError
        train.report(
            {"step": step, "scale": Model().value(step)},
            checkpoint=train.Checkpoint.from_dict({"step": step}),
        )
"""
        (first / "mine.py").write_text(code)
        head = code if place == "main" else "from mine import train_func\n"
        tail = f"""
from lockstep import train
try:
    train.DataParallelTrainer(
        train_func,
        train_loop_config={{"gate": {str(tmp_path / "gate")!r}}},
        run_config=train.RunConfig(verbose=0),
    ).fit()
except train.WorkerGroupError as error:
    print(error.result.path, end="")
"""
        path = run_script(first, head + tail).stdout
        (tmp_path / "gate").touch()
        for file in first.glob("*.py"):
            file.unlink()
        done = run_script(second, self.SECOND, stdin=path)
        assert "ROWS [[0, 0], [10, 1], [20, 2]]" in done.stdout

    @pytest.mark.parametrize("place", ["main", "module"])
    def test_what_the_function_imports_comes_too(self, tmp_path: Path, place: str) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        first.mkdir()
        second.mkdir()
        code = """
import helper
from helper import Kind, scaled
from lockstep import train

def train_func(config):
    assert config["kind"] is Kind.LARGE
    train.report({"step": helper.STEP, "scale": scaled(2)})
"""
        (first / "mine.py").write_text(code)
        (first / "helper.py").write_text(
            "import enum, deeper\nSTEP = 2\nKind = enum.Enum('Kind', 'SMALL LARGE')\n"
            "def scaled(n): return deeper.SCALE * n\n"
        )
        (first / "deeper.py").write_text("SCALE = 10\n")
        head = code if place == "main" else "from mine import train_func\nfrom helper import Kind\n"
        tail = """
from lockstep import train
run_config = train.RunConfig(verbose=0)
config = {"kind": Kind.LARGE}
print(train.DataParallelTrainer(
    train_func, train_loop_config=config, run_config=run_config
).fit().path, end="")
"""
        path = run_script(first, head + tail).stdout
        (Path(path) / JOURNAL_FILE).write_text(
            (Path(path) / JOURNAL_FILE).read_text().split('{"event":"end"')[0]
        )
        for directory in (second, first):  # without the modules, and with them
            done = run_script(directory, self.SECOND, stdin=path)
            assert "[20, 2]]" in done.stdout

    def test_a_big_module_does_not_come(self, tmp_path: Path) -> None:
        (tmp_path / "big.py").write_text("DATA = bytes(100 << 20)\nSTEP = 1\n")
        script = """
            import big
            from lockstep import train
            def train_func():
                train.report({"step": big.STEP})
            run_config = train.RunConfig(verbose=0)
            print(train.DataParallelTrainer(train_func, run_config=run_config).fit().path, end="")
            """
        path = run_script(tmp_path, script).stdout
        assert (Path(path) / TRAINER_FILE).stat().st_size < 1 << 20

    def test_what_only_an_import_can_give_has_to_be_given(self, tmp_path: Path) -> None:
        script = """
            from lockstep import train
            from helper import train_func
            run_config = train.RunConfig(verbose=0)
            print(train.DataParallelTrainer(train_func, run_config=run_config).fit().path, end="")
            """
        (tmp_path / "helper.py").write_text(
            "import threading\nfrom lockstep import train\nLOCK = threading.Lock()\n"
            "def train_func():\n    with LOCK: train.report({'step': 1})\n"
        )
        path = run_script(tmp_path, script).stdout
        with pytest.raises(
            ValueError,
            match=r"train_loop_per_worker cannot be loaded here \(ModuleNotFoundError: .*'helper'\)"
            r"; give train_loop_per_worker=…",
        ):
            DataParallelTrainer.restore(path)

        def instead() -> None:
            train.report({"step": 2})

        again = DataParallelTrainer.restore(path, train_loop_per_worker=instead)
        assert again.fit().metrics["step"] == 2


class TestWhatIsKept:
    def test_the_state_is_plain_json(self, config: dict[str, Any]) -> None:
        path = Path(failed_run(config).path)
        events = [json.loads(line) for line in (path / JOURNAL_FILE).read_text().splitlines()]
        assert [event["event"] for event in events if event["event"] != "checkpoint"] == [
            "run",
            "attempt",
            *["report"] * 3,
            "failure",
            "end",
        ]
        (path / TRAINER_FILE).unlink()
        again = Result.from_path(path)
        assert (again.state, again.metrics["step"], str(again.error)) == (
            "failed",
            2,
            "at step 3",
        )

    def test_without_the_trainer_the_function_has_to_be_given(self, config: dict[str, Any]) -> None:
        path = Path(failed_run(config).path)
        (path / TRAINER_FILE).unlink()
        assert not DataParallelTrainer.can_restore(path)
        with pytest.raises(FileNotFoundError, match=r"trainer\.pkl.*give train_loop_per_worker"):
            DataParallelTrainer.restore(path)
        open_gate(config)
        given = DataParallelTrainer.restore(
            path,
            train_loop_per_worker=count,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=QUIET,
        )
        check_whole(given.fit(), [1, 1, 1, 2, 2, 2])
        assert DataParallelTrainer.can_restore(path)

    def test_without_the_trainer_the_class_knows_its_framework(
        self, config: dict[str, Any]
    ) -> None:
        pytest.importorskip("torch")
        path = Path(failed_run(config).path)
        (path / TRAINER_FILE).unlink()
        again = TorchTrainer.restore(path, train_loop_per_worker=count, train_loop_config=config)
        assert again.backend_config == TorchConfig()

    def test_callbacks(self, config: dict[str, Any], tmp_path: Path) -> None:
        class Heard(Callback):
            def __init__(self, path: Path) -> None:
                self.path = path

            def on_trial_restore(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
                self.path.write_text("restored ")

            def on_trial_result(
                self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **_: Any
            ) -> None:
                with self.path.open("a") as file:
                    file.write(f"{result['step']} ")

        class Unpicklable(Heard):
            def __init__(self, path: Path) -> None:
                super().__init__(path)
                self.lock = threading.Lock()

        kept, left_out, given = (tmp_path / name for name in ("kept", "left_out", "given"))
        first = failed_run(config, callbacks=[Heard(kept), Unpicklable(left_out)])
        assert kept.read_text() == left_out.read_text() == "0 1 2 "
        open_gate(config)
        DataParallelTrainer.restore(first.path).fit()
        assert kept.read_text() == "restored 3 4 5 "
        assert left_out.read_text() == "0 1 2 "
        DataParallelTrainer.restore(
            first.path,
            train_loop_config={**config, "total": 7},
            run_config=RunConfig(verbose=0, callbacks=[Unpicklable(given)]),
        ).fit()
        assert given.read_text() == "restored 6 "

    def test_a_stop_condition_that_cannot_be_kept(self, config: dict[str, Any]) -> None:
        lock = threading.Lock()

        def stop(trial_id: str, result: dict[str, Any]) -> bool:
            with lock:
                return bool(result["step"] == 4)

        first = failed_run(config, stop=stop)
        open_gate(config)
        with pytest.raises(ValueError, match=r"RunConfig\(stop=…\).*give run_config"):
            DataParallelTrainer.restore(first.path)
        again = DataParallelTrainer.restore(
            first.path, run_config=RunConfig(verbose=0, stop={"step": 4})
        )
        assert again.fit().metrics["step"] == 4

    def test_the_run_config_and_where_the_run_is(self, config: dict[str, Any]) -> None:
        options = FailureConfig(max_failures=0, max_preemption_failures=3)
        first = failed_run(config)
        changed = DataParallelTrainer.restore(
            first.path, run_config=RunConfig(verbose=0, failure_config=options, name="elsewhere")
        )
        open_gate(config)
        assert changed.fit().path == first.path
        kept = DataParallelTrainer.restore(first.path)
        assert kept.run_config.failure_config == options


class TestNotThere:
    def test_no_such_directory(self, tmp_path: Path) -> None:
        assert not DataParallelTrainer.can_restore(tmp_path / "no")
        with pytest.raises(FileNotFoundError, match=r"no is not the directory of a run"):
            DataParallelTrainer.restore(tmp_path / "no")

    def test_another_driver_drives_it_still(self, tmp_path: Path) -> None:
        def train_func(config: dict[str, Any]) -> None:
            train.report({"step": 0})
            wait_for(lambda: os.path.exists(config["gate"]))

        config = {"gate": str(tmp_path / "gate")}
        driving = trainer(train_func, config=config, workers=1, storage_path=tmp_path, name="live")
        results: list[Result] = []
        thread = threading.Thread(target=lambda: results.append(driving.fit()))
        thread.start()
        try:
            wait_for(lambda: list(tmp_path.glob(f"live/*/{TRAINER_FILE}")))
            again = DataParallelTrainer.restore(tmp_path / "live")
            with pytest.raises(StorageError, match="still being driven by another process"):
                again.fit()
        finally:
            open_gate(config)
            thread.join()
        (result,) = results
        assert result.metrics_dataframe["step"].tolist() == [0]
        assert len(result.attempts) == 1


class TestResume:
    def test_never_makes_another_run_beside_it(self, config: dict[str, Any]) -> None:
        first = failed_run(config, name="resume-never")
        open_gate(config)
        second = fit(count, config=config, name="resume-never")
        assert second.log_dir != first.log_dir
        assert second.log_dir.parent == first.log_dir.parent
        assert second.metrics_dataframe["attempt"].tolist() == [1] * 6

    @pytest.mark.parametrize("resume", ["auto", "must"])
    def test_an_unfinished_run_resumes(self, config: dict[str, Any], resume: Any) -> None:
        name = f"resume-{resume}"
        first = failed_run(config, name=name)
        open_gate(config)
        second = fit(count, config=config, name=name, resume=resume)
        assert second.path == first.path
        check_whole(second, [1, 1, 1, 2, 2, 2])

    def test_after_a_finished_run_auto_starts_another(self) -> None:
        first = fit(count, config={"total": 1}, name="resume-finished")
        second = fit(count, config={"total": 1}, name="resume-finished", resume="auto")
        assert second.path != first.path

    @pytest.mark.parametrize(
        ("earlier", "found"), [(False, "no run"), (True, "only runs that have finished")]
    )
    def test_must_insists(self, earlier: bool, found: str) -> None:
        name = f"resume-must-{earlier}"
        if earlier:
            fit(count, config={"total": 1}, name=name)
        with pytest.raises(FileNotFoundError, match=rf"name='{name}'.*{found}.*resume='auto'"):
            fit(count, config={"total": 1}, name=name, resume="must")

    def test_auto_with_nothing_there_begins(self) -> None:
        assert fit(count, config={"total": 1}, name="resume-new", resume="auto").state == "finished"

    def test_the_scripts_function_is_the_one_that_runs(self, config: dict[str, Any]) -> None:
        def edited(config: dict[str, Any]) -> None:
            known = train.load_checkpoint()
            assert known is not None
            train.report({"step": known["step"] + 100})

        failed_run(config, name="resume-edited")
        result = fit(edited, config=config, name="resume-edited", resume="auto")
        assert result.metrics["step"] == 102


class TestRemote:
    def test_s3(self, s3_port: int, config: dict[str, Any]) -> None:
        uri = s3_uri(s3_port, new_bucket())
        first = failed_run(config, storage_path=uri, name="remote")
        open_gate(config)
        place = uri.replace("prefix?", "prefix/remote?")
        assert DataParallelTrainer.can_restore(place)
        result = DataParallelTrainer.restore(place).fit()
        assert result.path == first.path
        check_whole(result, [1, 1, 1, 2, 2, 2])
        check_whole(Result.from_path(place), [1, 1, 1, 2, 2, 2])
        storage = open_storage(result.path, result.filesystem)
        assert storage.read("logs/rank_1.log") == b"attempt 1\nattempt 2\n"
        rows = list(csv.DictReader(storage.read("progress.csv").decode().splitlines()))
        assert [row["step"] for row in rows] == list("012345")

    def test_s3_after_the_drivers_death(self, s3_port: int, tmp_path: Path) -> None:
        uri = s3_uri(s3_port, new_bucket())
        done = run_script(
            tmp_path,
            f"""
            import os, signal
            from lockstep import train

            def train_func(config):
                known = train.load_checkpoint()
                for step in range(known["step"] + 1 if known else 0, 4):
                    train.report(
                        {{"step": step}}, checkpoint=train.Checkpoint.from_dict({{"step": step}})
                    )
                    if step == 1 and not known:
                        os.kill(config["driver"], signal.SIGKILL)
                        signal.pause()

            train.DataParallelTrainer(
                train_func,
                train_loop_config={{"driver": os.getpid()}},
                run_config=train.RunConfig(verbose=0, storage_path={uri!r}, name="killed"),
            ).fit()
            """,
            check=False,
            environment={"TMPDIR": str(tmp_path)},
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        place = uri.replace("prefix?", "prefix/killed?")
        assert Result.from_path(place).state == "unfinished"
        frame = DataParallelTrainer.restore(place).fit().metrics_dataframe
        assert frame["step"].tolist() == [0, 1, 2, 3]
        assert frame["training_iteration"].tolist() == [1, 2, 3, 4]
        # The killed driver's own copy of the journal is elsewhere: it may have begun an attempt
        # that storage does not know, and a number is used once.
        assert frame["attempt"].tolist() == [1, 1, 3, 3]

    def test_what_was_staged_and_never_published_is_cleared_away(
        self, config: dict[str, Any], tmp_path: Path
    ) -> None:
        from pyarrow import fs

        def named(config: dict[str, Any]) -> None:
            count({**config, "total": 4})
            last = Checkpoint.from_dict({"step": 9})
            train.report({}, checkpoint=last, checkpoint_dir_name="named")

        remote = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        first = failed_run(config, storage_path="runs", storage_filesystem=remote)
        stale = [tmp_path / first.path / name for name in ("checkpoint_000003", "named", "mine")]
        for folder in stale:
            folder.mkdir()
            (folder / "rank_7").touch()
        open_gate(config)
        again = DataParallelTrainer.restore(first.path, remote, train_loop_per_worker=named)
        result = again.fit()
        assert [(folder / "rank_7").exists() for folder in stale] == [False, False, True]
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict()["step"] == 9


DRIVER = """
import os, sys, time
from lockstep import train

def train_func(config):
    known = train.load_checkpoint()
    for step in range(known["step"] + 1 if known else 0, 60):
        time.sleep(0.004)
        save = step % 2 == 0
        data = {"step": step, "text": "x" * 1000}
        train.report(
            {"step": step},
            checkpoint=train.Checkpoint.from_dict(data) if save else None,
            checkpoint_upload_mode=train.CheckpointUploadMode(config["mode"]),
        )

storage, mode = sys.argv[1:]
run_config = train.RunConfig(
    name="run", resume="auto", storage_path=storage, verbose=0,
    checkpoint_config=train.CheckpointConfig(num_to_keep=2),
)
train.DataParallelTrainer(
    train_func,
    train_loop_config={"mode": mode},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=run_config,
).fit()
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_driver_killed_again_and_again(tmp_path: Path, mode: str) -> None:
    chance = random.Random(mode)
    mark = {"LOCKSTEP_TEST_MARK": str(tmp_path)}
    kills = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(tmp_path), mode],
            env={**os.environ, "PYTHONPATH": str(SRC), **mark},
            stderr=subprocess.PIPE,
        ) as driver:
            goal = number_of_rows(tmp_path) + chance.randrange(3, 15)
            while number_of_rows(tmp_path) < goal and driver.poll() is None:
                time.sleep(0.002)
            time.sleep(chance.random() * 0.01)
            driver.kill()
            _, errors = driver.communicate()
        kills += driver.returncode == -signal.SIGKILL
        assert driver.returncode in (0, -signal.SIGKILL), errors.decode()
        wait_for(lambda: not marked_processes(tmp_path))
    assert kills >= 3
    result = DataParallelTrainer.restore(tmp_path / "run").fit()
    frame = result.metrics_dataframe
    assert result.state == "finished"
    assert len(set(frame["trial_id"])) == 1
    assert not frame.duplicated(["attempt", "step"]).any()
    assert (frame["training_iteration"] == frame["step"] + 1).all()
    reached = -1
    for _, rows_of_one in frame.groupby("attempt"):
        steps = rows_of_one["step"].tolist()
        assert steps == list(range(steps[0], steps[-1] + 1))
        assert steps[0] <= reached + 1, "a row is lost"
        reached = steps[-1]
    assert reached == 59
    assert [c.to_dict()["step"] for c, _ in result.best_checkpoints] == [56, 58]
    assert [path.name for path in result.log_dir.glob("checkpoint_*")]
    assert not list(result.log_dir.glob(".staging/*"))


def number_of_rows(storage: Path) -> int:
    journals = storage.glob(f"run/*/{JOURNAL_FILE}")
    return sum(journal.read_bytes().count(b'"event":"report"') for journal in journals)


def marked_processes(mark: Path) -> list[str]:
    wanted = f"LOCKSTEP_TEST_MARK={mark}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", name, "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(name)
    return found


SCRIPT = """
import sys
from lockstep import train
from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig


def helper():
    return 1 / 0


def train_func():
    if train.get_checkpoint() is None:
        train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"a": 1}))
    helper()
    train.report({"a": 2})


if __name__ == "__main__":
    if sys.argv[1:] == []:
        DataParallelTrainer(train_func, run_config=RunConfig(name="edited")).fit()
    elif sys.argv[1] == "kept":
        DataParallelTrainer.restore(sys.argv[2]).fit()
    else:
        DataParallelTrainer.restore(sys.argv[2], train_loop_per_worker=train_func).fit()
"""


def test_a_script_that_was_fixed_since(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    environment = {**os.environ, "PYTHONPATH": str(SRC), "LOCKSTEP_STORAGE": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, script, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )

    script.write_text(SCRIPT)
    failed = run()
    experiment = next(path for path in tmp_path.rglob("edited"))
    assert f"{os.sep}edited{os.sep}" in failed.stderr
    assert "train_loop_per_worker=train_func).fit()" in failed.stderr.splitlines()[-1]

    script.write_text("# a new first line\n" + SCRIPT.replace("1 / 0", "1 / 1"))
    kept = run("kept", str(experiment))
    assert kept.returncode == 1
    told = " ".join((kept.stdout + kept.stderr).split())
    assert "The code has changed since this run was started (helper)." in told
    assert "The code that was kept with the run is used. To use the new code: " in told
    # The lines are those of the code that ran.
    assert f'File "{script} (as it was then)", line 8, in helper\n    return 1 / 0' in kept.stderr

    fixed = run("new", str(experiment))
    assert fixed.returncode == 0, fixed.stderr
    assert "has changed" not in fixed.stdout + fixed.stderr
    assert Result.from_path(experiment).metrics["a"] == 2


def test_an_unfinished_run_of_the_same_name_gives_a_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def train_func(config: dict[str, Any]) -> None:
        train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"a": 1}))
        if config["fails"]:
            raise RuntimeError("in between")

    first = failure(train_func, config={"fails": True}, name="mine").result
    capfd.readouterr()
    fit(train_func, config={"fails": False}, name="mine")
    told = " ".join("".join(capfd.readouterr()).split())
    assert "An earlier run of the name 'mine' has not finished (failed, 1 checkpoint)" in told
    assert first is not None
    assert f"restore({first.path!r}, train_loop_per_worker=…).fit()" in told
    assert "RunConfig(name='mine', resume='auto')" in told
    fit(train_func, config={"fails": False}, name="mine")
    assert "earlier run" not in "".join(capfd.readouterr())

    other = failure(train_func, config={"fails": True}, name="other").result
    assert other is not None
    with closing(Journal(f"{other.path}/{JOURNAL_FILE}")):  # a driver is at work there
        fit(train_func, config={"fails": False}, name="other")
    assert "earlier run" not in "".join(capfd.readouterr())


def test_a_notebook_cell_that_was_run_again_since(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    cell = """
from lockstep import train
from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig, WorkerGroupError

def helper():
    return 1 / 0

def train_func():
    if train.get_checkpoint() is None:
        train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"a": 1}))
    helper()
"""
    (tmp_path / "cell.py").write_text(cell)
    done = run_script(
        tmp_path,
        """
        from pathlib import Path
        from IPython.core.interactiveshell import InteractiveShell

        shell = InteractiveShell.instance(colors="nocolor")
        cell = Path("cell.py").read_text()

        def run(text):
            shell.run_cell(text, store_history=True)

        run(cell)
        run("run_config = RunConfig(name='cells', verbose=0)")
        run("DataParallelTrainer(train_func, run_config=run_config).fit()")
        run("from pathlib import Path; path = next(Path().absolute().rglob('cells'))")
        print("=== the same cell")
        run("DataParallelTrainer.restore(path).fit()")
        print("=== another cell")
        run(cell.replace("1 / 0", "1 / 1"))
        run("DataParallelTrainer.restore(path).fit()")
        """,
    )
    before, same, other = done.stdout.split("===")
    assert "return 1 / 0" in before
    assert "return 1 / 0" in same
    assert "return 1 / 0" in other
    told = " ".join(done.stderr.split())
    assert told.count("The code has changed since this run was started (helper).") == 1
