"""Running a part of a run again, from one of its checkpoints, and comparing what comes out."""

from __future__ import annotations

import os
import sys
import tempfile
from bdb import BdbQuit
from collections.abc import Callable, Collection
from dataclasses import replace
from pdb import Pdb
from types import FrameType
from typing import TYPE_CHECKING, Any

from lockstep.config import RunConfig
from lockstep.console.text import shorten
from lockstep.errors import TrainingFailedError, TrainingInterrupted
from lockstep.journal.records import RunRecords, existing_checkpoints, open_checkpoint
from lockstep.result import Reproduction
from lockstep.run_layout import scratch_prefix
from lockstep.storage import Storage
from lockstep.testing.compare import ABSENT, Comparison
from lockstep.train.record.fork import choose_fork
from lockstep.train.record.saved_trainer import run_storage, saved_sources, saved_trainer
from lockstep.train.trainer import DataParallelTrainer
from lockstep.train.worker.debugger import Debugging, stop_in

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["Reproduction", "replay", "verify_run"]

_STEPS = 10
_OWN = "lockstep."
_MAX_VALUE = 60
_AT_THE_BEGINNING = (
    " If that is random: no checkpoint has the random numbers of the beginning, so the function "
    "has to set its seeds, with enable_reproducibility() for example."
)


def verify_run(
    path: str | os.PathLike[str],
    storage_filesystem: pyarrow.fs.FileSystem | None = None,
    *,
    step: int | None = None,
    steps: int = _STEPS,
    ignore: Collection[str] = (),
) -> Reproduction:
    """Run some reports of a run again from a checkpoint, and compare metrics and checkpoints.

    From the beginning (``step=0``) if there is no checkpoint with a report after it.

    The run is only read; what is run again lies in a temporary directory. This executes code that
    is kept with the run. What the function does not get back from its checkpoint (random
    generators, an optimizer, its place in the data) is a difference: ``train.State`` and
    ``get_dataset_shard()`` keep all of these.

    Args:
        path: the run's directory, or an experiment's (its newest run).
        storage_filesystem: a ``pyarrow.fs.FileSystem`` that ``path`` is a path on.
        step: the ``training_iteration`` of the checkpoint; by default the newest one with a report
            after it. 0: from the beginning of the run.
        steps: how many reports to run again, at most.
        ignore: names of metrics and of entries of checkpoints that are not compared.

    Raises:
        FileNotFoundError: there is no run, or nothing to run it again with.
        ValueError: there is no such checkpoint, or no report after it.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"verify_run(steps={steps!r}): expected a number above 0.")
    storage = run_storage(path, storage_filesystem)
    records = RunRecords(storage)
    # After a failure an iteration has several rows. The last one led to the run's end.
    rows = {report["iteration"]: report for report in records.reports()}
    if step is None:
        step = _newest_followed(storage, records, rows)
    wanted = [number for number in range(step + 1, step + steps + 1) if number in rows]
    if not wanted:
        if step:
            choose_fork(storage, step)  # names the steps there are, if this is none
        raise ValueError(
            f"{storage.uri} has no report after step {step} to compare with; choose an earlier one."
        )
    return _run_again(storage, records, step, wanted, ignore)


def replay(
    path: str | os.PathLike[str],
    storage_filesystem: pyarrow.fs.FileSystem | None = None,
    *,
    step: int,
    probe: Callable[[dict[str, Any]], Any] | None = None,
    pdb: bool = False,
    rank: int = 0,
    ignore: Collection[str] = (),
) -> Reproduction:
    """Go back to a step of a run: run it again from the newest checkpoint before, and look.

    Where no checkpoint before it is kept, from the beginning of the run: what is random is the same
    then if the function sets its seeds. As ``verify_run``, up to the report of this step, where it
    stops. A run of one rank is run again in this process.

    Args:
        path, storage_filesystem, ignore: see ``verify_run``.
        step: the ``training_iteration`` of the report to go back to.
        probe: called with the variables of the function that reports, as the step's report is
            about to be sent. It runs where the rank runs: in a process of its own if there are
            several.
        pdb: open the debugger on this terminal, where the function continues after that report; it
            may be followed into the next step.
        rank: on which rank ``probe`` is called, or the debugger opened.

    Raises:
        FileNotFoundError: there is no run, or nothing to run it again with.
        ValueError: the run has no such step or rank, or neither a checkpoint before it nor a
            beginning of its own.
    """
    storage = run_storage(path, storage_filesystem)
    records = RunRecords(storage)
    rows = {report["iteration"]: report for report in records.reports()}
    if step not in rows:
        there = f"{min(rows)} to {max(rows)}" if rows else "none"
        raise ValueError(f"{storage.uri} has no report of step {step}; it has {there}.")
    size = len(rows[step]["ranks"])
    if not 0 <= rank < size:
        raise ValueError(f"replay(rank={rank!r}): the step has ranks 0 to {size - 1}.")
    kept = existing_checkpoints(storage, records.checkpoints)
    start = max((record.iteration for record in kept if record.iteration < step), default=0)
    wanted = [number for number in range(start + 1, step + 1) if number in rows]
    look = _Look(rank, step - start, probe, pdb=pdb)
    try:
        return _run_again(storage, records, start, wanted, ignore, look)
    except (TrainingInterrupted, TrainingFailedError) as error:
        if not pdb or not isinstance(error.__cause__ or error, (BdbQuit, TrainingInterrupted)):
            raise
        return Reproduction(
            storage.uri, start, 0, 0, "the debugger was left, so nothing is compared."
        )


class _Look:
    """Called before each report, as a fault plan is: looks once."""

    def __init__(
        self,
        rank: int,
        number: int,
        probe: Callable[[dict[str, Any]], Any] | None,
        *,
        pdb: bool = False,
    ) -> None:
        self._where = rank, number, 1
        self._probe = probe
        self.pdb = pdb

    def __call__(self, rank: int, number: int, attempt: int) -> None:
        if (rank, number, attempt) != self._where:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OWN):
            frame = frame.f_back
        if self.pdb and frame is not None:
            worker = getattr(sys.breakpointhook, "__self__", None)
            if isinstance(worker, Debugging):
                worker.stop_in(frame)  # on the driver's terminal
            else:
                stop_in(Pdb(), frame)
        elif self._probe is not None:
            self._probe(dict(frame.f_locals) if frame is not None else {})


def _run_again(
    storage: Storage,
    records: RunRecords,
    step: int,
    wanted: list[int],
    ignore: Collection[str],
    look: _Look | None = None,
) -> Reproduction:
    """Run the reports ``wanted`` again from the checkpoint at ``step``, and compare."""
    rows = {report["iteration"]: report for report in records.reports()}
    trainer = _from_beginning(storage, records) if step == 0 else _from_step(storage, step)
    size = len(rows[wanted[0]]["ranks"])
    trainer.fault_plan = look
    if look is not None and size == 1:
        size = 0  # in this process
    if trainer.scaling_config.num_workers != size:
        trainer.scaling_config = replace(trainer.scaling_config, num_workers=size)
    with tempfile.TemporaryDirectory(prefix=scratch_prefix("verify")) as directory:
        trainer.run_config = replace(
            trainer.run_config,
            name=None,
            storage_path=directory,
            storage_filesystem=None,
            callbacks=(),
            # A debugger follows the function after the report, so the run must not end there.
            stop={"training_iteration": wanted[-1] + (look is not None and look.pdb)},
            verbose=0,
        )
        again = run_storage(trainer.fit().path, None)
        there = RunRecords(again)
        comparison = Comparison(0.0, ignore)
        difference = _first_difference(comparison, rows, wanted, there)
        if difference is not None and step == 0:
            difference += _AT_THE_BEGINNING
        states = 0
        if difference is None:
            states, difference = _compare_states(
                comparison, (storage, records), (again, there), wanted
            )
    return Reproduction(storage.uri, step, len(wanted), states, difference)


def _from_step(storage: Storage, step: int) -> DataParallelTrainer:
    filesystem = None if storage.is_local else storage.filesystem
    return DataParallelTrainer.fork(storage.root, filesystem, step=step)


def _from_beginning(storage: Storage, records: RunRecords) -> DataParallelTrainer:
    """A trainer that does all of a run again."""
    parent = records.run.get("parent")
    if parent is not None:
        raise ValueError(
            f"{storage.uri} is a fork, and does not keep the checkpoint of step {parent['step']} "
            f"any more, where it began; its parent may have it: {parent['path']}."
        )
    trainer = DataParallelTrainer(**{"run_config": RunConfig(), **saved_trainer(storage, {})})
    trainer._kept_sources = saved_sources(storage)
    trainer.run_config = replace(trainer.run_config, resume="never")
    return trainer


def _newest_followed(storage: Storage, records: RunRecords, rows: dict[int, dict[str, Any]]) -> int:
    steps = {record.iteration for record in existing_checkpoints(storage, records.checkpoints)}
    followed = [step for step in steps if step + 1 in rows]
    return max(followed, default=0)


def _first_difference(
    comparison: Comparison,
    rows: dict[int, dict[str, Any]],
    wanted: list[int],
    there: RunRecords,
) -> str | None:
    again = {report["iteration"]: report for report in there.reports()}
    for step in wanted:
        if step not in again:
            return f"it ended before the report of step {step}."
        before, now = rows[step]["ranks"], again[step]["ranks"]
        if len(before) != len(now):
            return (
                f"step {step} was run by {len(before)} worker(s), and here by {len(now)}: the run "
                "changed its size there; choose a step after that."
            )
        pairs = zip(before, now, strict=True)
        for rank, (expected, got) in enumerate(pairs):
            for place, one, other in comparison.values(expected, got):
                return f"at step {step}, {place} of rank {rank} {_changed(one, other)}."
    return None


def _compare_states(
    comparison: Comparison,
    first: tuple[Storage, RunRecords],
    second: tuple[Storage, RunRecords],
    wanted: list[int],
) -> tuple[int, str | None]:
    """How many checkpoints of the same step both have kept, and where the first differs."""
    kept = [
        {
            record.iteration: open_checkpoint(storage, record)
            for record in existing_checkpoints(storage, records.checkpoints)
        }
        for storage, records in (first, second)
    ]
    count = 0
    for step in wanted:
        if step in kept[0] and step in kept[1]:
            count += 1
            for place, one, other in comparison.checkpoints(kept[0][step], kept[1][step]):
                # Only generators of modules that are imported have a state, and a worker may have
                # been forked from a process with more of them.
                if not (place.startswith("rng/") and (one is ABSENT or other is ABSENT)):
                    where = f"in the checkpoint of step {step}, {place}"
                    return count, f"{where} {_changed(one, other)}."
    return count, None


def _changed(one: Any, other: Any) -> str:
    return f"is {shorten(repr(other), _MAX_VALUE)} and was {shorten(repr(one), _MAX_VALUE)}"
