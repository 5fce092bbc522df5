"""train.State in whole runs: saved behind the loop, restored bit for bit, also from memory."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import lockstep
from lockstep import cli, train
from lockstep.errors import CheckpointError, StorageError
from lockstep.journal.records import RunRecords
from lockstep.run_layout import MANIFEST
from lockstep.state.files import StoredState
from lockstep.storage import local, open_storage
from lockstep.testing import verify_resume
from lockstep.train import CheckpointConfig, Result, State
from lockstep.train.driver import controller
from lockstep.train.driver import events as e
from lockstep.train.driver.controller import Controller
from lockstep.train.driver.hangs import Stalled
from lockstep.train.driver.memory import StateMemory
from lockstep.train.protocol import MemoryPart
from lockstep.train.record.run import Run
from tests.integration.runs import failure, fit, trainer


def walk(config: Mapping[str, Any]) -> None:
    """A random walk: any state that is lost changes every row after it."""
    rank = train.get_context().get_world_rank()
    random.seed(rank)
    np.random.seed(rank)
    place = np.zeros(3)
    state = State(place=place, step=0, path=[], generator=np.random.default_rng(rank))
    state.restore()
    for step in range(state.step, config.get("steps", 6)):
        place += np.random.normal(size=3) + random.random() + state.generator.random()
        state.step = step + 1
        state.path.append(float(place[0]))
        train.report({"place": place.sum(), "path": len(state.path)}, checkpoint=state)


def rows_of(result: Result) -> list[float]:
    frame = result.metrics_dataframe
    assert frame is not None
    return [float(value) for value in frame["place"]]


def ranks_of(result: Result) -> tuple[int, ...]:
    assert result.checkpoint is not None
    assert result.checkpoint.storage is not None
    return StoredState.read(result.checkpoint.storage).ranks


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_state_is_kept_and_read(workers: int) -> None:
    result = fit(walk, workers=workers, config={"steps": 2})
    assert result.checkpoint is not None
    found = result.checkpoint.to_dict()
    assert found["step"] == 2
    assert len(found["path"]) == 2
    assert found["place"].sum() == rows_of(result)[-1]
    # Anyone can read it, without lockstep.
    with result.checkpoint.as_directory() as directory:
        tensors = load_file(Path(directory, "train_state/rank_0.safetensors"))
        index = json.loads(Path(directory, "train_state/rank_0.json").read_text())
    np.testing.assert_array_equal(tensors["place"], found["place"])
    assert index["entries"]["step"] == 2
    again = State(place=np.zeros(3), step=0, path=[], generator=np.random.default_rng())
    assert again.restore(result.checkpoint)
    assert again.step == 2


@pytest.mark.parametrize("fault", ["kill", "raise"])
def test_a_resumed_run_equals_one_that_was_not_interrupted(fault: Any) -> None:
    report = verify_resume(trainer(walk, workers=2), fault=fault, tolerance=0.0)
    assert report, str(report)


def test_a_state_is_restored_by_another_number_of_workers() -> None:
    first = fit(walk, workers=2, config={"steps": 3})
    assert ranks_of(first) == (0, 1)

    def go_on() -> None:
        state = State(place=np.zeros(3), step=0, path=[], generator=np.random.default_rng())
        assert state.restore(first.checkpoint)
        train.report({"place": state.place.sum()}, checkpoint=state)

    assert rows_of(fit(go_on, workers=3)) == rows_of(first)[-1:]


def killed_while_writing(config: Mapping[str, Any]) -> None:
    """Rank 1 dies when every copy is sealed, while nothing is written yet."""
    context = train.get_context()
    first = context.get_world_rank() == 1 and not os.path.exists(config["flag"])
    state = State(values=np.arange(4.0), step=0)
    restored = state.restore()
    if not restored:
        state.values += context.get_world_rank()
    writing = threading.Event()

    def held(path: str) -> None:
        for thread in threading.enumerate():
            if thread.name == "lockstep-seal":
                thread.join()
        writing.set()
        threading.Event().wait()

    if not restored:
        local._fsync = held
    for step in range(state.step, 3):
        state.step = step + 1
        train.report({"step": step, "restored": restored}, checkpoint=state)
        if not restored and step == 0:
            writing.wait()  # sealed, and not written
            train.collective.barrier()
            if first:
                open(config["flag"], "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
    assert (state.values == np.arange(4.0) + context.get_world_rank()).all()


def test_after_a_death_the_state_in_memory_is_used(tmp_path: Path) -> None:
    config = {"flag": str(tmp_path / "flag")}
    result = fit(killed_while_writing, config=config, max_failures=1, workers=2)
    frame = result.metrics_dataframe
    assert frame is not None
    # Nothing of the first attempt was on storage: without the memory, step 0 would be there twice.
    assert list(frame["step"]) == [0, 1, 2]
    assert list(frame["restored"]) == [False, True, True]
    kept = [checkpoint for checkpoint, _ in result.best_checkpoints]
    assert len(kept) == 3
    for checkpoint in kept:
        assert checkpoint.to_dict()["values"][0] == 0.0


@pytest.mark.parametrize("written", [True, False])
def test_ranks_that_cannot_open_the_memory_wait_for_storage(
    written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: the state is written only when a rank asks for it."""
    asked = threading.Event()
    parts, write, ask = StateMemory.parts, StateMemory.write, Controller._ask_committed

    def of_another_machine(
        self: StateMemory, name: str, nodes: Any
    ) -> dict[str, tuple[MemoryPart, ...]]:
        found = parts(self, name, nodes)[""]
        return {"": tuple(part._replace(name="elsewhere") for part in found)}

    def write_late(*args: Any) -> None:
        assert asked.wait(120)
        if not written:
            raise StorageError("no room")
        write(*args)

    def note_question(*args: Any) -> None:
        asked.set()
        ask(*args)

    monkeypatch.setattr(StateMemory, "parts", of_another_machine)
    monkeypatch.setattr(StateMemory, "write", write_late)
    monkeypatch.setattr(Controller, "_ask_committed", note_question)
    config = {"flag": str(tmp_path / "flag")}
    if not written:
        error = failure(killed_while_writing, config=config, max_failures=1, workers=2)
        assert "in the driver's memory, which this rank cannot open" in str(error)
        return
    result = fit(killed_while_writing, config=config, max_failures=1, workers=2)
    frame = result.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == [0, 1, 2]


def reader_killed_while_writing(config: Mapping[str, Any]) -> None:
    """Reads a row a step; dies when the state of the third one is sealed, and not written."""
    shard, checkpoint = train.get_dataset_shard("train"), train.get_checkpoint()
    state = State(step=0)
    if checkpoint is not None:
        state.restore(checkpoint)
    writing = threading.Event()

    def held(path: str) -> None:
        for thread in threading.enumerate():
            if thread.name == "lockstep-seal":
                thread.join()
        writing.set()
        threading.Event().wait()

    for batch in shard.iter_batches(batch_size=1):
        state.step += 1
        row = int(batch["id"][0])
        if checkpoint is not None:
            train.report({"step": state.step, "row": row}, checkpoint=state)
            return
        if state.step == 3:
            local._fsync = held
        train.report({"step": state.step, "row": row}, checkpoint=state if row != 1 else None)
        if state.step == 1:
            train.get_all_reported_checkpoints()  # waits until it is on storage
        if state.step == 3:
            writing.wait()
            os.kill(os.getpid(), signal.SIGKILL)


def test_rows_are_those_of_the_checkpoint_that_could_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = threading.Event()
    ask = Controller._ask_committed

    def note_question(self: Controller, *args: Any) -> None:
        if self.state.attempt == 2:
            asked.set()
        ask(self, *args)

    def never(*args: Any) -> None:
        assert asked.wait(120)
        raise StorageError("no room")

    monkeypatch.setattr(StateMemory, "write", never)
    monkeypatch.setattr(Controller, "_ask_committed", note_question)
    made = trainer(reader_killed_while_writing, config={}, max_failures=1, workers=1)
    made.datasets = {"train": lockstep.data.range(20)}
    result = made.fit()
    frame = result.metrics_dataframe
    assert frame is not None
    assert RunRecords(open_storage(result.path)).attempts[2]["iteration"] == 1
    found = frame[frame["attempt"] == 2]
    assert [(row["step"], row["row"]) for _, row in found.iterrows()] == [(2, 1)]
    # Counts continue where the rank has, not where the state that was lost was.
    assert list(found["training_iteration"]) == [2]


def file_killed_while_writing(config: Mapping[str, Any]) -> None:
    """Rank 0 has the file of torch.save, and dies when its copy is sealed, and not written."""
    import torch

    from lockstep.train.torch.save_file import TorchFile

    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        assert checkpoint.path is not None
        found = torch.load(Path(checkpoint.path, "model.ckpt"))
        train.report({"sum": found["weight"].sum().item(), "step": found["step"]})
        return
    sealed = threading.Event()

    def held(path: str) -> None:
        for thread in threading.enumerate():
            if thread.name == "lockstep-seal":
                thread.join()
        sealed.set()
        threading.Event().wait()

    local._fsync = held
    lead = train.get_context().get_world_rank() == 0
    file = TorchFile("model.ckpt", {"weight": torch.ones(100), "step": 7})
    train.report({}, checkpoint=file if lead else None)
    if lead:
        sealed.wait()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_file_of_torch_save_outlives_its_rank(tmp_path: Path) -> None:
    result = fit(file_killed_while_writing, max_failures=1, workers=2)
    assert result.reported_metrics is not None
    assert (result.reported_metrics["sum"], result.reported_metrics["step"]) == (100.0, 7)
    assert result.checkpoint is not None
    assert list(result.checkpoint.files()) == ["model.ckpt"]


def test_every_nth_report_and_the_last_state() -> None:
    result = fit(walk, workers=2, config={"steps": 8}, checkpoint_config=CheckpointConfig(every=3))
    steps = [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints]
    assert sorted(steps) == [3, 6, 8]
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 8
    assert len(rows_of(result)) == 8


def test_the_state_at_which_a_run_is_stopped_is_kept() -> None:
    result = fit(
        walk,
        workers=2,
        config={"steps": 100},
        stop={"path": 5},
        checkpoint_config=CheckpointConfig(every=50),
    )
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 5
    assert result.best_checkpoints[-1][1]["path"] == 5


def test_a_timed_interval_saves_the_last_state_only_if_the_run_is_shorter() -> None:
    result = fit(walk, workers=1, checkpoint_config=CheckpointConfig(every="1h"))
    assert [c.to_dict()["step"] for c, _ in result.best_checkpoints] == [6]


def test_auto_saves_the_first_and_the_last() -> None:
    result = fit(walk, workers=2, checkpoint_config=CheckpointConfig(every="auto"))
    steps = [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints]
    assert steps[0] == 1
    assert steps[-1] == 6


def slow_storage(config: Mapping[str, Any]) -> None:
    """Each state is written when the driver holds the one after it."""
    state, flush = State(step=0), local._fsync

    def late(path: str) -> None:
        before = os.path.join(config["folder"], f"after_{path.partition('checkpoint_')[2][:6]}")
        while "checkpoint_000002" not in path and not os.path.exists(before):
            time.sleep(0.001)
        flush(path)

    local._fsync = late
    for step in (1, 2, 3):
        state.step = step
        train.report({"step": step}, checkpoint=state)


def test_where_storage_is_slow_the_next_state_waits_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reported, in_flight = Controller._reported_state, []

    def note(self: Controller, *args: Any) -> None:
        reported(self, *args)
        in_flight.append(sum(not save.held for save in self.state.saves))
        for save in self.state.saves:
            if save.held:
                (tmp_path / f"after_{save.id - 1:06}").touch()

    monkeypatch.setattr(Controller, "_reported_state", note)
    monkeypatch.setattr(controller, "HELD_S", -1.0)  # any wait is worth a remark
    result = fit(slow_storage, config={"folder": str(tmp_path)}, workers=2)
    steps = [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints]
    assert steps == [1, 2, 3]
    assert max(in_flight) == 1
    assert capfd.readouterr().err.count("storage is slower than the interval") == 1


def no_room(config: Mapping[str, Any]) -> None:
    state = State(values=np.zeros(10), step=0)
    write = local._write_file
    for step in range(4):
        state.step = step + 1

        def full(path: str, *rest: Any, step: int = step) -> None:
            if "safetensors" in path and step in config["full"]:
                raise OSError(28, os.strerror(28), path)
            write(path, *rest)

        setattr(local, "_write_file", full)  # noqa: B010
        train.report({"step": step}, checkpoint=state)
        train.get_all_reported_checkpoints()  # until the save is over


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    result = fit(no_room, config={"full": [1]}, workers=1)
    steps = [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints]
    assert steps == [1, 3, 4]
    assert "could not save its state" in capfd.readouterr().err
    assert not list(Path(result.path).glob(".staging/*"))


def no_memory() -> None:
    """The state grows at each step; at the second there is no room for its copy."""
    state, reserve = State(values=np.zeros(1), step=0), os.posix_fallocate

    def full(*args: Any) -> None:
        if state.step == 2:
            raise OSError(28, os.strerror(28))
        reserve(*args)

    setattr(os, "posix_fallocate", full)  # noqa: B010
    for step in (1, 2, 3):
        state.step, state.values = step, np.zeros(10**step)
        train.report({"step": step}, checkpoint=state)


def test_without_memory_for_a_copy_training_continues(capfd: pytest.CaptureFixture[str]) -> None:
    result = fit(no_memory, workers=1)
    found = [checkpoint.to_dict() for checkpoint, _ in result.best_checkpoints]
    assert [(kept["step"], kept["values"].size) for kept in found] == [(1, 10), (3, 1000)]
    assert "There is no room in memory for a copy" in capfd.readouterr().err


def three_states() -> None:
    state = State(step=0)
    for step in (1, 2, 3):
        state.step = step
        train.report({"step": step}, checkpoint=state)
        train.get_all_reported_checkpoints()  # until the save is over


@pytest.mark.parametrize("number", [1, 2])
def test_a_disk_that_is_full_when_a_state_is_published_does_not_end_the_run(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write, tries = local._write_file, []

    def full_once(path: str, *rest: Any) -> None:
        if path.endswith(MANIFEST) and f"checkpoint_00000{number}" in path:
            tries.append(path)
            if len(tries) == 1:
                raise OSError(28, os.strerror(28), path)
        write(path, *rest)

    monkeypatch.setattr(local, "_write_file", full_once)  # in the driver
    result = fit(three_states, workers=2)
    steps = [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints]
    assert steps == ([1, 3] if number == 1 else [1, 2, 3])  # the last one is tried again
    assert f"checkpoint_00000{number} could not be published" in capfd.readouterr().err
    assert not list(Path(result.path).glob(".staging/*"))


def waits_for_the_driver(config: Mapping[str, Any]) -> None:
    """Attempt 1 is killed as in killed_while_writing; attempt 2 ends when a file says so."""
    if train.get_context().get_attempt() == 1:
        killed_while_writing(config)
    state = State(values=np.arange(4.0), step=0)
    assert state.restore()
    train.report({"step": state.step})
    while not os.path.exists(config["end"]):
        time.sleep(0.01)


@pytest.mark.parametrize("stage", ["write", "publish"])
def test_a_write_that_was_abandoned_and_comes_back(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state in memory is written again, unless the abandoned try has published it."""
    released, end, arrived = threading.Event(), tmp_path / "end", []
    adopt, late = Controller._adopt, Controller._arrived_late
    owner: Any = StateMemory if stage == "write" else Run
    original = getattr(owner, stage)
    adopted: list[tuple[Controller, e.Adopt]] = []
    tries: list[threading.Thread] = []

    def slow(*args: Any) -> None:
        tries.append(threading.current_thread())
        if len(tries) == 1:
            driver, action = adopted[0]
            stalled = Stalled(action.save.name, 9.0, "it is not published yet", True)
            driver._loop.call_soon(lambda: driver._report_stalled(stalled))
            if stage == "publish":  # it comes back while attempt 2 runs
                driver._loop.call_soon(released.set)
            else:
                end.touch()
            assert released.wait(120)
        else:  # the first one writes as well, now
            released.set()
            tries[0].join(120)
        original(*args)

    def note_adopted(self: Controller, action: e.Adopt) -> None:
        adopted.append((self, action))
        adopt(self, action)

    def note(self: Controller, *args: Any) -> None:
        late(self, *args)
        arrived.append(args)
        end.touch()

    monkeypatch.setattr(owner, stage, slow)
    monkeypatch.setitem(controller._PERFORM, e.Adopt, note_adopted)
    monkeypatch.setattr(Controller, "_arrived_late", note)
    config = {"flag": str(tmp_path / "flag"), "end": str(end)}
    result = fit(
        waits_for_the_driver, config=config, max_failures=1, workers=2, storage_timeout_s=3600
    )
    assert [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints] == [1]
    assert list(RunRecords(open_storage(result.path)).checkpoints) == [0]
    assert len(tries) == (2 if stage == "write" else 1)
    assert len(arrived) == (0 if stage == "write" else 1)
    assert not list(Path(result.path).glob(".staging/*"))


def full(path: str, *rest: Any) -> None:
    raise OSError(28, os.strerror(28), path)


def full_at_the_end() -> None:
    """Of two states, the disk has no room for the last one."""
    state = State(step=1)
    restored = state.restore()
    train.report({"restored": restored}, checkpoint=state)
    train.get_all_reported_checkpoints()  # until the first save is over
    setattr(local, "_write_file", full)  # noqa: B010
    state.step = 2
    train.report({"restored": restored}, checkpoint=state)


@pytest.mark.parametrize("every", [1, 100])
def test_a_last_state_that_cannot_be_written_fails_the_run(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = local._write_file

    def full_for_states(path: str, *rest: Any) -> None:
        (full if "safetensors" in path else write)(path, *rest)

    monkeypatch.setattr(local, "_write_file", full_for_states)  # in the driver
    error = failure(full_at_the_end, workers=2, checkpoint_config=CheckpointConfig(every=every))
    assert "the last state" in str(error)
    assert "No space left" in str(error)
    assert "restore the run" in str(error)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_driver_writes_a_last_state_that_its_ranks_could_not(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not workers:  # the driver is the worker: it has room again when the function is over
        adopt = StateMemory.write

        def with_room(*args: Any, write: Any = local._write_file) -> None:
            setattr(local, "_write_file", write)  # noqa: B010
            adopt(*args)

        monkeypatch.setattr(StateMemory, "write", with_room)
    result = fit(full_at_the_end, workers=workers)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 2
    assert len(result.best_checkpoints) == 2
    assert not list(Path(result.path).glob(".staging/*"))


def again_and_again(config: Mapping[str, Any]) -> None:
    """Attempt 2 starts from memory, saves, and restores once more."""
    state = State(step=0)
    if not state.restore():
        setattr(local, "_write_file", full)  # noqa: B010
        state.step = 1
        train.report({"step": 1}, checkpoint=state)
        train.get_all_reported_checkpoints()  # until it is lost
        raise ValueError("the first attempt ends here")
    assert state.step == 1
    assert state.restore()  # nothing is newer
    assert state.step == 1
    for step in (2, 3):
        state.step = step
        train.report({"step": step}, checkpoint=state)
        train.get_all_reported_checkpoints()
    state.step = 9
    assert state.restore()
    train.report({"step": state.step})


def test_a_later_restore_is_from_the_newest_state() -> None:
    result = fit(again_and_again, workers=2, max_failures=1)
    frame = result.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == [1, 2, 3, 3]
    assert [c.to_dict()["step"] for c, _ in result.best_checkpoints] == [1, 2, 3]


def test_a_checkpoint_of_something_else_is_refused() -> None:
    def other() -> None:
        train.report({}, checkpoint=train.Checkpoint.from_dict({"a": 1}))
        State(step=1).restore()

    assert "has no training state" in str(failure(other, workers=1))


def test_ranks_that_report_different_kinds_are_refused() -> None:
    def mixed() -> None:
        if train.get_context().get_world_rank():
            train.report({}, checkpoint=State(a=1))
        else:
            data = train.Checkpoint.from_dict({"a": 1})
            train.report({}, checkpoint=data, checkpoint_upload_mode="async")  # type: ignore[arg-type]

    assert "different kinds of objects" in str(failure(mixed))


def test_a_rank_may_return_with_an_unsaved_state_that_others_do_not_have() -> None:
    def only_rank_0() -> None:
        state = State(step=7)
        lead = train.get_context().get_world_rank() == 0
        train.report({}, checkpoint=state if lead else None)

    config = CheckpointConfig(every=100)
    result = fit(only_rank_0, workers=2, checkpoint_config=config)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 7
    assert ranks_of(result) == (0,)


def test_memory_that_has_changed_is_not_used(tmp_path: Path) -> None:
    from lockstep.state.memory import checksum, create_memory, open_memory

    descriptor, name = create_memory(4096)
    try:
        before = checksum(os.pread(descriptor, 4096, 0), 4096)
        opened = open_memory(os.getpid(), descriptor, name, 4096)
        os.pwrite(descriptor, b"x", 100)
        assert checksum(os.pread(opened, 4096, 0), 4096) != before
        with pytest.raises(OSError, match="is not"):
            open_memory(os.getpid(), descriptor, "another", 4096)
        os.close(opened)
    finally:
        os.close(descriptor)


def test_files_of_different_snapshots_are_not_mixed(tmp_path: Path) -> None:
    result = fit(walk, workers=2, config={"steps": 2})
    assert result.checkpoint is not None
    target = Path(result.checkpoint.to_directory(tmp_path / "copy"))
    index = json.loads((target / "train_state/rank_1.json").read_text())
    index["snapshot"] = "another"
    (target / "train_state/rank_1.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="mixes files of different snapshots"):
        train.Checkpoint(target).to_dict()
    (target / "train_state/rank_1.json").unlink()
    with pytest.raises(CheckpointError, match=r"rank_1\.json is missing"):
        train.Checkpoint(target).to_dict()


def test_show_lists_what_is_inside(capsys: pytest.CaptureFixture[str]) -> None:
    result = fit(walk, workers=2, config={"steps": 1})
    assert result.checkpoint is not None
    assert cli.main(["show", str(result.checkpoint.path)]) == 0
    shown = capsys.readouterr().out
    assert "2 ranks" in shown
    assert "step       value" in shown
    assert cli.main(["show", str(result.checkpoint.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_name = {entry["name"]: entry for entry in found["entries"]}
    assert by_name["step"]["value"] == 1
    assert by_name["place"]["nbytes"] == 2 * 24  # each rank's own


def preempted(config: Mapping[str, Any]) -> None:
    state = State(step=0)
    restored = state.restore()
    first = state.step
    while state.step < first + 3 or not restored:
        state.step += 1
        train.report({"step": state.step, "restored": restored}, checkpoint=state)
        if state.step == 2 and not restored and train.get_context().get_world_rank() == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_preempted_run_keeps_the_state_at_which_it_stopped() -> None:
    result = fit(preempted, workers=2, checkpoint_config=CheckpointConfig(every=10**6))
    frame = result.metrics_dataframe
    assert frame is not None
    # Nothing is trained twice, and nothing is missing.
    assert list(frame["step"]) == list(range(1, len(frame) + 1))
    assert list(frame["restored"])[-3:] == [True] * 3
