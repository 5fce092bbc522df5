"""The worker's side of a run while the training function runs: what ``train.report`` talks to."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointUploadMode, Guard
from lockstep.engine.base import Channel
from lockstep.engine.resources import available_cpus
from lockstep.engine.snapshots import fetch_snapshot
from lockstep.error_record import pack_error
from lockstep.errors import CheckpointError, EngineError, StopTraining, StorageError
from lockstep.jobs import JobThread
from lockstep.journal.records import address_from
from lockstep.metrics import normalise
from lockstep.run_layout import snapshot_prefix, state_data, state_index
from lockstep.state.files import StoredState, TensorSource, bytes_source
from lockstep.state.memory import checksum, open_memory
from lockstep.storage import Storage, open_storage
from lockstep.trackers.values import Outcome
from lockstep.train.context import PreemptionInfo, TrainContext
from lockstep.train.protocol import (
    Answer,
    AskCommitted,
    BorrowTerminal,
    Broken,
    CheckpointReport,
    CloseTrackers,
    ClosingTrackers,
    Committed,
    Failed,
    Faults,
    FellBack,
    Finished,
    LogRow,
    Meet,
    MemoryPart,
    NotSaved,
    Report,
    ReturnTerminal,
    Saved,
    SaveOrder,
    Sealed,
    Shared,
    Snapshotted,
    StateDigests,
    StateShares,
    Terminal,
    TrackerOpened,
)
from lockstep.train.reduction import check_reduce
from lockstep.train.worker.guard import GuardWatch
from lockstep.train.worker.shards import Shards
from lockstep.train.worker.snapshot import Snapshot, SnapshotMemory, StateBase, digests
from lockstep.train.worker.take_over import check_copied, check_moved, check_moved_files

__all__ = ["Session", "activate", "current"]

MAX_UPLOADS = 2
"""How many uploads may run or wait in the background; the next report waits."""
_SUM_THREADS = 8
"""How many threads sum a state in memory before it is restored: more are not faster."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Session:
    """One worker's run. ``report`` may be called from any thread, one at a time."""

    def __init__(
        self,
        channel: Channel,
        context: TrainContext,
        storage: Storage,
        score_attribute: str | None,
        checkpoint: Checkpoint | None,
        reported: list[Committed],
        faults: Faults | None = None,
        shards: Shards | None = None,
        memory: Sequence[MemoryPart] = (),
        *,
        starts_pending: bool = False,
        fallback: tuple[Checkpoint | None, dict[str, Any] | None] = (None, None),
    ) -> None:
        self.context = context
        self.shards = shards
        self.checkpoint = checkpoint
        self.reported_checkpoints = list(reported)
        self._channel = channel
        self._storage = storage
        self._score_attribute = score_attribute
        self._faults = faults
        self._uploads = JobThread("lockstep-upload", MAX_UPLOADS, self._upload_failed)
        # An answer belongs to the report before it, so two threads may not report at once.
        self._lock = threading.Lock()
        self._number = 0
        self._stopped = False
        self.pausing = False
        """The run stops here and is resumed later, from its newest checkpoint."""
        self.validates = False
        """The trainer has a ``validation_config``."""
        self.checkpoint_requested = False
        self.preemption: PreemptionInfo | None = None
        self._uploading = False
        """A report has returned before its checkpoint was committed."""
        self._last_time = time.time_ns()
        # The ledger: since when the function runs, and what of that was waiting.
        self.start_clock()
        self._waits: dict[str, float] = {}
        self.before_reports: list[Callable[[float], None]] = []
        """Called before each report with the busy seconds, to call ``waited``."""
        self.models: list[weakref.ref[Any]] = []
        """The models that ``prepare_model()`` has returned, and that are the same on every rank."""
        self.states: list[weakref.ref[Any]] = []
        """The training states of the function."""
        self._guard: GuardWatch | None = None
        self._pid = os.getpid()
        self._end_hooks: list[Callable[[Outcome], None]] = []
        self._memory = SnapshotMemory()
        self._leaves_state = False
        """The driver has this rank's copy of the state: writing it is not this rank's work."""
        self._unsaved: StateBase | None = None
        """The state that was reported last, if the driver did not want it then."""
        self._unsaved_validation: dict[str, Any] | None = None
        self._start_state = _open_parts(memory, channel.node.id if memory and channel.node else "")
        self._starts_in_memory = bool(memory)
        """The other ranks start from a state in memory."""
        self._fallback = fallback
        self._restored = False
        """The function has restored the state in memory: positions are those of that."""
        self._awaits_start = starts_pending
        """The checkpoint to start from may not be on storage yet."""

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Checkpoint | StateBase | None,
        *,
        dir_name: str | None,
        mode: CheckpointUploadMode,
        take_over: bool,
        reduce: str | Mapping[str, str] | None,
        validation: dict[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        """Meet the other ranks at this report; return when all are there and it is kept.

        Returns the reduced metrics of all ranks; None without ``reduce``.
        """
        self._check_process("report()")
        plain = normalise(metrics)
        check_reduce(reduce, plain)
        # Before the checkpoint is touched: a state that is broken must not become the newest one.
        found = None if self._guard is None else self._guard.check(plain)
        # Outside the lock, and before anything is sent: an error here concerns this rank only.
        part = self._describe(checkpoint, dir_name, mode, take_over)
        if validation is not None:
            assert part is not None
            part = part._replace(validation=validation)
        # A plan of failures (lockstep.testing) may end this process here, or open a debugger, which
        # asks the driver for its terminal.
        if self._faults is not None and not self._stopped:
            self._faults(self.context.world_rank, self._number + 1, self.context.attempt)
        with self._lock:
            if self._stopped:
                # A function may catch StopTraining and report again: it must not wait for others.
                raise StopTraining("the driver has asked this run to stop")
            self._number += 1
            # In nanoseconds: the difference has few digits, and the driver writes it to files.
            now = time.time_ns()
            elapsed = (now - self._last_time) / 1e9
            data = None if self.shards is None else self.shards.progress(elapsed)
            if data is not None and data.waited_s:
                self.waited("data", data.waited_s)
            if isinstance(checkpoint, Checkpoint) and (spent := checkpoint.take_encoding_time()):
                self.waited("checkpoint", spent)
            report = Report(
                self._number,
                plain,
                part,
                reduce,
                now / 1e9,
                elapsed,
                data,
                *self.take_times(),
                found,
            )
            self._last_time = now
            try:
                return self._exchange(report, checkpoint, take_over)
            finally:
                self.start_clock()

    def use_guard(self, guard: Guard, broken: Broken | None) -> None:
        """Look at each report as ``RunConfig(guard=…)`` says."""

        def shared() -> list[Any]:
            return [model for known in self.models if (model := known()) is not None]

        def models() -> list[Any]:
            found = {id(model): model for model in shared()}
            for known in self.states:
                for entry in vars(state)["_entries"].values() if (state := known()) else ():
                    if hasattr(entry, "named_parameters"):
                        found.setdefault(id(entry), entry)
            return list(found.values())

        def same() -> list[Any]:
            # Of a model that only a State knows, ranks may have different ones, or shards.
            one = place.world_size == 1
            return [m for m in models() if one or hasattr(m, "find_unused_parameters")]

        def rows() -> dict[str, int]:
            return {} if self.shards is None else self.shards.rows_read()

        if self.shards is not None and broken is not None:
            self.shards.rows_read(begin=True)  # where this attempt begins
        place = self.context
        self._guard = GuardWatch(
            guard, place.world_rank, place.attempt, models, self.meet, same, broken, rows
        )

    def show_guard(self, model: Any = None, state: Any = None) -> None:
        """A model that is the same on every rank, or a training state, for the guard to look at."""
        if model is not None:
            self.models.append(weakref.ref(model))
        if state is not None:
            self.states.append(weakref.ref(state))
        if self._guard is not None:
            self._guard.watch_torch()

    def close_guard(self) -> None:
        """The function is over: what the guard has hooked into torch is removed."""
        if self._guard is not None:
            self._guard.close()

    def start_clock(self) -> None:
        """From now on the function runs, and does not wait for a report."""
        self._free_since = time.perf_counter_ns()

    def waited(self, account: str, seconds: float) -> None:
        """Count time since the last report in which the function did not compute."""
        self._waits[account] = self._waits.get(account, 0.0) + seconds

    def take_times(self) -> tuple[float, dict[str, float] | None]:
        """How long the function has run since the last report, and what of that was waiting."""
        # Whole microseconds, because it is written to the journal with every report.
        busy = (time.perf_counter_ns() - self._free_since) // 1000 / 1e6
        # What was measured must not be counted again in a share of the whole time.
        rest = max(busy - self._waits.get("communication", 0.0), 0.0)
        for count in self.before_reports:
            count(rest)
        if not self._waits:
            return busy, None
        waits = {account: round(seconds, 6) for account, seconds in self._waits.items()}
        self._waits = {}
        return busy, waits

    def remove_uploaded(self, checkpoint: Checkpoint) -> None:
        """Delete a local checkpoint that a user's function has uploaded, where a report would.

        Raises:
            ValueError: its directory must not be deleted.
        """
        if checkpoint.storage is not None and self._may_take(checkpoint):
            self._checked_files(checkpoint, take_over=True)
            shutil.rmtree(checkpoint.storage.root)

    def start_state(self) -> StoredState | Checkpoint | None:
        """The state to start from, in memory where it is still there; the newest one after that.

        Raises:
            CheckpointError: the memory has changed, or only other ranks can open it.
        """
        if self._start_state and self._fetch_start():
            self._restored = True
            if self.shards is not None:
                self.shards.start_at(self.shards.first)
            return self._state_in_memory()
        found = self.start_checkpoint()
        if self._starts_in_memory:
            # Not committed meanwhile. The others have it, so an older state must not be used.
            raise CheckpointError(
                "The state to start from is in the driver's memory, which this rank cannot open, "
                "and it could not be written to storage; the next attempt starts again."
            )
        return found

    def _fetch_start(self) -> bool:
        """Read what other nodes keep; False: it is gone, and so on storage, or lost."""
        for place, (part, descriptor) in enumerate(self._start_state):
            try:
                self._start_state[place] = part, _fetched(part, descriptor)
            except CheckpointError:
                self._drop_start()
                self._starts_in_memory = True  # until it is known to be on storage
                return False
        return True

    def _state_in_memory(self) -> StoredState:
        opened = {part.rank: (part, descriptor) for part, descriptor in self._start_state}
        # The other ranks of this machine restore, too.
        threads = min(_SUM_THREADS, available_cpus() // self.context.local_world_size)

        def source(rank: int) -> TensorSource:
            # Only of the ranks that this one reads from: of a sharded model that is one.
            part, descriptor = opened[rank]
            memory = mmap.mmap(descriptor, part.size)
            if checksum(memory, part.size, threads) != part.checksum:
                raise CheckpointError(
                    f"The copy of rank {part.rank}'s state in memory has another checksum than "
                    "when it was taken; the run starts again from storage."
                )
            return bytes_source(memory)

        indexes = {rank: json.loads(part.structure) for rank, (part, _) in opened.items()}
        where = "the memory of the last workers"
        return StoredState(where, indexes, source, fleeting=True)

    def start_checkpoint(self) -> Checkpoint | None:
        """The newest committed checkpoint, or the one to start from; waits until it exists."""
        if self._awaits_start:
            with self._lock:
                if not self._stopped:
                    self._ask_committed(None)
            self._awaits_start = False
            known = [committed.checkpoint for committed in self.reported_checkpoints]
            if self.checkpoint not in known:  # it could not be written
                self.checkpoint, positions = self._fallback
                if not self._restored:
                    self._channel.send(FellBack())
                    if self.shards is not None:
                        self.shards.start_at(positions)
        return self.checkpoint

    def settle_copy(self) -> None:
        """Tensors of the state are about to be overwritten: let that wait for their copy."""
        self._memory.settle()

    def keep_last_state(self) -> None:
        """The function has returned: save the state that it reported last, if that is not saved."""
        state = self._unsaved
        if state is None or self._stopped:
            return
        part = self._describe(state, None, CheckpointUploadMode.ASYNC)
        assert part is not None
        part = part._replace(of_last_row=True, validation=self._unsaved_validation)
        with self._lock:
            # The number that the next report would have: ranks that report once more do not fit.
            report = Report(self._number + 1, None, part, None, time.time(), 0.0)
            self._exchange(report, state, False)

    @property
    def reports(self) -> int:
        """How often this rank has called ``report()`` in this attempt."""
        return self._number

    def save_checkpoint(self, checkpoint: Checkpoint, *, of_last_report: bool = False) -> None:
        """Keep a checkpoint without a report. Only rank 0's counts, and it waits for no other rank.

        It may follow a report that raised ``StopTraining``. ``of_last_report``: the checkpoint
        gets the metrics of the last report.
        """
        self._check_process("save_checkpoint()")
        if self.context.world_rank != 0:
            return
        part = self._describe(checkpoint, None, CheckpointUploadMode.SYNC)
        assert part is not None
        part = part._replace(of_last_row=of_last_report)
        with self._lock:
            report = Report(self._number, None, part, None, time.time(), 0.0)
            with self._waiting("checkpoint"):
                self._exchange(report, checkpoint, False)

    def wait_for_commits(self, timeout_s: float | None, *, validated: bool) -> None:
        """Wait until every reported checkpoint is committed, and ``validated``."""
        self._check_process("get_all_reported_checkpoints()")
        with self._lock:
            validated = validated and self.validates
            if self._stopped or not (self._uploading or validated):
                return
            self._ask_committed(timeout_s, validated)

    def _ask_committed(self, timeout_s: float | None, validated: bool = False) -> None:
        with self._waiting("checkpoint"):
            self._channel.send(AskCommitted(timeout_s, validated))
            answer = self._channel.receive()
        if isinstance(answer, CloseTrackers):
            self._let_go()
        assert isinstance(answer, Answer)
        self._learn(answer)

    @contextlib.contextmanager
    def _waiting(self, account: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited(account, time.perf_counter() - began)

    def _learn(self, answer: Answer) -> None:
        """Take over the checkpoints that were committed or validated since the last answer."""
        if not answer.committed:
            return
        places = {known.id: place for place, known in enumerate(self.reported_checkpoints)}
        for committed in answer.committed:
            if committed.id in places:  # it was validated since
                self.reported_checkpoints[places[committed.id]] = committed
                continue
            places[committed.id] = len(self.reported_checkpoints)
            self.reported_checkpoints.append(committed)
            self.checkpoint = committed.checkpoint
            self._awaits_start = False
            self._drop_start()

    def meet(self, call: str, value: bytes) -> bytes:
        """Wait until every rank calls this; return the value of rank 0."""
        self._check_process(call)
        with self._lock:
            if self._stopped:
                raise StopTraining("this run has been told to stop")
            with self._waiting("ranks"):
                self._channel.send(Meet(call, value if self.context.world_rank == 0 else b""))
                answer = self._channel.receive()
            if isinstance(answer, CloseTrackers):
                self._let_go()
            assert isinstance(answer, Shared)
            return answer.value

    def log(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Keep a row of metrics. Never waits."""
        self._check_process("log()")
        row = {"step": step, "time": time.time(), "metrics": normalise(metrics)}
        self._channel.post(LogRow(_encode(row)))

    def borrow_terminal(self) -> str:
        """Wait for the driver's terminal; return its path.

        Raises:
            RuntimeError: the driver has no terminal.
        """
        self._check_process("breakpoint()")
        with self._lock:
            self._channel.send(BorrowTerminal())
            answer = self._channel.receive()
        assert isinstance(answer, Terminal)
        if answer.path is None:
            raise RuntimeError(answer.problem)
        return answer.path

    def return_terminal(self) -> None:
        """Give the driver's terminal back."""
        self._channel.send(ReturnTerminal())

    def keep_file(self, name: str, source: str) -> None:
        """Store a local file in the run directory, under a name that no other rank uses."""
        self._storage.put(name, source)

    def at_end(self, hook: Callable[[Outcome], None]) -> None:
        """Call ``hook`` with the outcome when the function has ended, in the function's thread.

        Or when another rank has failed while this rank waits in ``report``, in that thread.
        """
        # Once: the driver needs to know that there is one, not how many.
        if not self._end_hooks:
            self._channel.send(TrackerOpened())
        self._end_hooks.append(hook)

    @contextlib.contextmanager
    def end_hooks(self, pack: Callable[[BaseException], dict[str, Any]]) -> Iterator[None]:
        """Around the training function: call the ``at_end`` hooks, whatever happens.

        A failure is sent first, as ``pack`` describes it: the other ranks need not wait for hooks.
        """
        outcome: Outcome = "finished"
        try:
            yield
        except BaseException as error:
            outcome = self._outcome(error)
            if self._end_hooks and outcome != "finished":
                self._channel.send(ClosingTrackers(pack(error) if outcome == "failed" else None))
            raise
        finally:
            for hook in self._end_hooks:
                self._call_end_hook(hook, outcome)

    def _call_end_hook(self, hook: Callable[[Outcome], None], outcome: Outcome) -> None:
        try:
            hook(outcome)
        except Exception as error:
            # A tracker that fails does not change how the function went.
            text = f"Could not end a tracker's run: {type(error).__name__}: {error}"
            print(text, file=sys.stderr, flush=True)

    def _outcome(self, error: BaseException) -> Outcome:
        if isinstance(error, StopTraining):
            return "stopped" if self.checkpoint_requested else "finished"
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return "finished"
        return "stopped" if isinstance(error, KeyboardInterrupt) else "failed"

    def finish(self) -> bool:
        """Wait for uploads; False if one failed (and has been reported)."""
        if not self._uploading:
            done = self._uploads.drain()
        else:
            with self._waiting("checkpoint"):
                done = self._uploads.drain()
        self._memory.close()
        self._drop_start()
        return done

    def _drop_start(self) -> None:
        """The state that this attempt started from is on storage, or a newer one replaces it."""
        for _, descriptor in self._start_state:
            if descriptor >= 0:
                os.close(descriptor)
        self._start_state = []
        self._starts_in_memory = False

    def _check_process(self, caller: str) -> None:
        # A forked data loader has a copy of the socket, and would write into the middle of a frame.
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{caller} was called in process {os.getpid()}, a child of the worker (process "
                f"{self._pid}) of rank {self.context.world_rank}; call it in the worker itself."
            )

    def _describe(
        self,
        checkpoint: Checkpoint | StateBase | None,
        dir_name: str | None,
        mode: CheckpointUploadMode,
        take_over: bool = False,
    ) -> CheckpointReport | None:
        if checkpoint is None:
            return None
        if isinstance(checkpoint, StateBase):
            rank = self.context.world_rank
            one = checkpoint.file
            names = (state_index(rank), state_data(rank)) if one is None else (one,)
            files = dict.fromkeys(names, 0)
            mode = CheckpointUploadMode.ASYNC
            due = one is not None  # later its parts would not be of the same step
            return CheckpointReport(files, mode, dir_name, None, None, is_state=True, is_due=due)
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                f"report(checkpoint={checkpoint!r}): expected a lockstep Checkpoint or a State."
            )
        attribute = self._score_attribute
        score = checkpoint.dict_value(attribute) if attribute else None
        if mode is CheckpointUploadMode.NO_UPLOAD:
            if checkpoint.path is None:
                raise CheckpointError(
                    "NO_UPLOAD keeps a checkpoint where it lies, but one made with from_dict lies "
                    "nowhere yet; use SYNC or ASYNC."
                )
            checkpoint.files()  # raises where there is nothing
            # Decided here: another process may see another filesystem under the same path.
            place = address_from(self._storage, checkpoint)
            return CheckpointReport({}, mode, dir_name, score, place, kind=checkpoint.kind)
        files = self._checked_files(checkpoint, take_over)
        return CheckpointReport(files, mode, dir_name, score, None, kind=checkpoint.kind)

    def _checked_files(self, checkpoint: Checkpoint, take_over: bool) -> dict[str, int]:
        """The checkpoint's files. A directory that must not be copied or moved is refused first."""
        if checkpoint.storage is None or not checkpoint.storage.is_local:
            return checkpoint.files()
        directory = checkpoint.storage.root
        check_copied(directory, self.context.trial_dir)
        if not (take_over and self._may_take(checkpoint)):
            return checkpoint.files()
        check_moved(directory, self.context.trial_dir, is_spool=not self._storage.is_local)
        files = checkpoint.files()
        check_moved_files(directory, files)
        return files

    def _exchange(
        self, report: Report, checkpoint: Checkpoint | StateBase | None, take_over: bool
    ) -> dict[str, Any] | None:
        self._channel.send(report)
        answer = self._channel.receive()
        if isinstance(checkpoint, StateBase):
            self._unsaved = checkpoint
            assert report.checkpoint is not None
            self._unsaved_validation = report.checkpoint.validation
        if isinstance(answer, SaveOrder):
            if isinstance(checkpoint, StateBase):
                self._save_state(answer, checkpoint)
                self._unsaved = None
            else:
                assert checkpoint is not None
                self._save(answer, checkpoint, take_over)
            answer = self._channel.receive()
        if isinstance(answer, CloseTrackers):
            self._let_go()
        assert isinstance(answer, Answer)
        self._learn(answer)
        if answer.notice is not None:
            kind, rank, deadline = answer.notice
            self.checkpoint_requested = True
            if kind == "preemption":
                self.preemption = PreemptionInfo(rank, deadline or 0.0)
        # The request is met by this checkpoint.
        elif report.checkpoint is not None and self._unsaved is None:
            self.checkpoint_requested = False
        if answer.stop:
            self._stopped = True
            self.pausing = answer.stop == "pause"
            self._leaves_state = answer.stop == "memory"
            raise StopTraining("the driver has asked this run to stop")
        return answer.reduced

    def _let_go(self) -> None:
        """Another rank has failed: close the trackers. The driver then kills this process."""
        hooks, self._end_hooks = self._end_hooks, []
        for hook in hooks:
            self._call_end_hook(hook, "failed")
        self._channel.send(Finished())
        # Returning would let the function continue. The kill comes while this waits.
        while True:
            self._channel.receive()

    def _save(self, order: SaveOrder, checkpoint: Checkpoint, take_over: bool) -> None:
        take_over = take_over and self._may_take(checkpoint)
        if order.mode is CheckpointUploadMode.SYNC:
            self._upload(order, checkpoint, take_over)
            return
        job = partial(self._upload, order, checkpoint, take_over)
        if checkpoint.path is not None:
            # Before the files are moved or the function changes them.
            fingerprints = self._fingerprint(order, checkpoint)
            if not order.names or self._snapshot_is_final(checkpoint, take_over):
                # Only flushing is left for later.
                self._write(order, checkpoint, take_over, flush=False)
                job = partial(self._make_durable, order, fingerprints)
            else:
                source = self._set_aside(order, checkpoint, take_over)
                job = partial(self._upload, order, source, True, fingerprints)
        # Sent before the upload begins: the driver must not get ``Saved`` before ``Snapshotted``.
        self._channel.send(Snapshotted(order.name))
        self._uploading = True
        self._uploads.submit(job)

    def _save_state(self, order: SaveOrder, state: StateBase) -> None:
        """Copy the state; it is written while training continues."""
        rank = self.context.world_rank
        self._drop_start()  # there is room for one state in memory
        captured = state.capture()
        groups: Mapping[str, tuple[int, ...]] = {}
        if len(order.ranks) > 1:
            self._channel.send(StateDigests(order.name, digests(captured)))
            shares = self._channel.receive()
            assert isinstance(shares, StateShares)
            groups = shares.groups
        name = f"{self.context.trial_id}/{self.context.attempt}/{order.name}"
        try:
            taken = self._memory.take(captured, name, rank, order.ranks, groups)
        except StorageError as error:
            self._channel.send(NotSaved(order.name, pack_error(error)))
            return
        part = None
        if taken.place is not None:
            part = MemoryPart(
                rank, taken.structure, os.getpid(), *taken.place, taken.layout.size, (), state.file
            )
        self._channel.send(Snapshotted(order.name, taken.seconds, part))
        self._uploading = True
        self._uploads.submit(self._write_state, order, taken, state.file)

    def _write_state(self, order: SaveOrder, taken: Snapshot, file: str | None) -> None:
        rank = self.context.world_rank
        try:
            taken.wait()
        except StorageError as error:
            self._channel.send(NotSaved(order.name, pack_error(error)))
            return
        # Summing and writing both only read, and neither holds the interpreter's lock.
        seal = threading.Thread(target=self._seal, args=(order.name, taken), name="lockstep-seal")
        seal.start()
        try:
            data = f"{order.directory}/{file or state_data(rank)}"
            self._storage.put_stream(data, self._unless_left(taken.chunks()))
            if file is None:
                self._storage.put_bytes(f"{order.directory}/{state_index(rank)}", taken.structure)
        except _Left:
            seal.join()
        except StorageError as error:
            seal.join()
            self._channel.send(NotSaved(order.name, pack_error(error)))
        else:
            seal.join()  # the memory is written again after the next message
            self._channel.send(Saved(order.name, {}))

    def _unless_left(self, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
        for chunk in chunks:
            if self._leaves_state:
                raise _Left
            yield chunk
        if self._leaves_state:  # flushing would take the longest
            raise _Left

    def _seal(self, name: str, taken: Snapshot) -> None:
        self._channel.send(Sealed(name, taken.checksum()))

    def _may_take(self, checkpoint: Checkpoint) -> bool:
        # A committed checkpoint is the run's: moving its files would destroy it.
        committed = (self.checkpoint, *(known.checkpoint for known in self.reported_checkpoints))
        return checkpoint.is_movable and checkpoint not in committed

    def _upload(
        self,
        order: SaveOrder,
        checkpoint: Checkpoint,
        take_over: bool,
        fingerprints: Mapping[str, int] | None = None,
    ) -> None:
        if fingerprints is None:
            fingerprints = self._fingerprint(order, checkpoint)
        self._write(order, checkpoint, take_over)
        self._channel.send(Saved(order.name, fingerprints))

    def _write(
        self, order: SaveOrder, checkpoint: Checkpoint, take_over: bool, *, flush: bool = True
    ) -> None:
        if order.names:  # else the directory may be gone: taken over by a rank that shares it
            checkpoint.save_files(
                self._storage, order.directory, order.names, move=take_over, flush=flush
            )
            if take_over:
                _remove_empty(checkpoint)

    def _make_durable(self, order: SaveOrder, fingerprints: Mapping[str, int]) -> None:
        for name in order.names:
            self._storage.flush(str(PurePosixPath(order.directory, name)))
        self._channel.send(Saved(order.name, fingerprints))

    def _fingerprint(self, order: SaveOrder, checkpoint: Checkpoint) -> dict[str, int]:
        sums: dict[str, int] = {}
        for name in order.compare:
            # Gone: a rank that shares the directory took it over, so there is nothing to compare.
            with contextlib.suppress(FileNotFoundError):
                sums.update(checkpoint.fingerprint((name,)))
        return sums

    def _snapshot_is_final(self, checkpoint: Checkpoint, take_over: bool) -> bool:
        """Whether the snapshot is best written straight to the checkpoint's place on storage."""
        if not (self._storage.is_local and take_over):
            return self._storage.is_local
        # A move to another device is a copy: leave it for later if a rename makes the files safe.
        places = (checkpoint.path, self._storage.root, tempfile.gettempdir())
        device, there, here = (os.stat(str(place)).st_dev for place in places)
        return device == there or device != here

    def _set_aside(self, order: SaveOrder, checkpoint: Checkpoint, take_over: bool) -> Checkpoint:
        # On remote storage the run's own directory is a temporary one, which the driver removes
        # even if this worker dies. Never beside the checkpoint: that may end with the report, too.
        remote = not self._storage.is_local and os.path.isdir(self.context.trial_dir)
        parent = self.context.trial_dir if remote else None
        # By the run, so that the driver finds what a worker that died has left.
        prefix = snapshot_prefix(self.context.trial_id, self._storage.root)
        aside = tempfile.mkdtemp(prefix=prefix, dir=parent)
        checkpoint.save_files(open_storage(aside), "", order.names, move=take_over, flush=False)
        if take_over:
            _remove_empty(checkpoint)
        return Checkpoint(aside)

    def _upload_failed(self, error: BaseException) -> None:
        self._channel.send(Failed(pack_error(error)))


class _Left(Exception):
    """The state is not written here after all."""


def _open_parts(parts: Sequence[MemoryPart], node: str) -> list[tuple[MemoryPart, int]]:
    """Open the memory of a state that the driver keeps; all of it or, if it is gone, nothing.

    What another node keeps has no descriptor yet, -1: it is read when it is needed.
    """
    opened: list[tuple[MemoryPart, int]] = []
    try:
        for part in parts:
            found = -1
            if part.holder is None or part.holder.node == node:
                found = open_memory(part.pid, part.descriptor, part.name, part.size)
            opened.append((part, found))
    except OSError:  # on storage since, or the driver is on another machine
        for _, descriptor in opened:
            if descriptor >= 0:
                os.close(descriptor)
        return []
    return opened


def _fetched(part: MemoryPart, descriptor: int) -> int:
    """The memory of a part on this machine, read from another node if it is not here yet."""
    if descriptor >= 0:
        return descriptor
    assert part.holder is not None
    try:
        return fetch_snapshot(part.holder)[0]
    except (EngineError, OSError) as error:
        raise CheckpointError(
            f"Rank {part.rank}'s part of the state to start from is in the memory of another "
            f"node, and could not be read: {error}"
        ) from error


def _remove_empty(checkpoint: Checkpoint) -> None:
    """Remove the directories of a checkpoint that have no file left: another rank's stay."""
    assert checkpoint.path is not None
    # rmdir() refuses a directory with files, so the order from the leaves up is enough.
    for folder, _, _ in os.walk(checkpoint.path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


# A global and not a context variable: report() may be called in any thread of the process.
_current: Session | None = None


def activate(session: Session | None) -> None:
    """Make ``session`` the one that ``train.report`` talks to in this process."""
    global _current
    if session is None and _current is not None:
        _current.close_guard()
    _current = session


def current() -> Session | None:
    """The session of this process, None outside a training function."""
    return _current
