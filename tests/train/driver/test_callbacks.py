"""Events reach every callback, in order, whatever another callback does."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.callback import Callback, LoggerCallback, RunContext, TrialSnapshot, UserCallback
from lockstep.checkpoint import Checkpoint
from lockstep.config import RunConfig, ScalingConfig
from lockstep.trackers.tracker_callback import TrackerCallback
from lockstep.train.driver import callback_lane, hook_calls
from lockstep.train.driver.callbacks import CallbackDispatcher

TRIAL = TrialSnapshot(
    "4913f_00000", "TorchTrainer", "/results/run", last_result={"trial_id": "4913f"}
)
STOP = {"training_iteration": 10}
CONTEXT = RunContext(
    RunConfig(stop=STOP), TRIAL.trial_id, TRIAL.path, "experiment", {"lr": 0.1}, ScalingConfig()
)
CHECKPOINT = Checkpoint("/results/run/checkpoint_000000")


class Recorder(Callback):
    """Keeps (hook, arguments) of every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def setup(self, *args: Any, **info: Any) -> None:
        self.calls.append(("setup", info))

    def on_trial_start(self, *args: Any, **info: Any) -> None:
        self.calls.append(("start", info))

    def on_trial_restore(self, *args: Any, **info: Any) -> None:
        self.calls.append(("restore", info))

    def on_trial_result(self, *args: Any, **info: Any) -> None:
        self.calls.append(("result", info))

    def on_trial_save(self, *args: Any, **info: Any) -> None:
        self.calls.append(("save", info))

    def on_checkpoint(self, *args: Any, **info: Any) -> None:
        self.calls.append(("checkpoint", info))

    def on_trial_complete(self, *args: Any, **info: Any) -> None:
        self.calls.append(("complete", info))

    def on_trial_error(self, *args: Any, **info: Any) -> None:
        self.calls.append(("error", info))

    def on_experiment_end(self, *args: Any, **info: Any) -> None:
        self.calls.append(("experiment_end", info))

    @property
    def hooks(self) -> list[str]:
        return [hook for hook, _ in self.calls]


class UserRecorder(UserCallback):
    def __init__(self) -> None:
        self.reports: list[tuple[RunContext, list[dict[str, Any]], Checkpoint | None]] = []
        self.failures: list[tuple[RunContext, dict[int, Exception]]] = []

    def after_report(
        self,
        run_context: RunContext,
        metrics: list[dict[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        self.reports.append((run_context, metrics, checkpoint))

    def after_exception(
        self, run_context: RunContext, worker_exceptions: dict[int, Exception]
    ) -> None:
        self.failures.append((run_context, worker_exceptions))


class Blocked(TrackerCallback):
    """Stays in its first result hook until ``go`` is set."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.results = 0
        self.thread: threading.Thread | None = None

    def on_trial_result(self, *args: Any, **info: Any) -> None:
        self.thread = threading.current_thread()
        self.entered.set()
        self.go.wait()
        self.results += 1


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    callback = Blocked()
    yield callback
    callback.go.set()
    if callback.thread is not None:
        callback.thread.join()


class Problems(list[str]):
    """Collects problems; ``first`` is set with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.Event()

    def __call__(self, problem: str) -> None:
        self.append(problem)
        self.first.set()


def dispatch(
    callbacks: Sequence[object],
    events: Callable[[CallbackDispatcher], None],
    problems: Callable[[str], None] | None = None,
    flush_s: float = 30.0,
) -> None:
    """One run: ``start``, the given events, ``close``. No problem may come up unless collected."""
    unexpected: list[str] = []
    on_problem = unexpected.append if problems is None else problems
    dispatcher = CallbackDispatcher(callbacks, on_problem, flush_s)
    dispatcher.start(TRIAL, CONTEXT)
    try:
        events(dispatcher)
    finally:
        dispatcher.close()
    assert unexpected == []


def report(dispatcher: CallbackDispatcher, iteration: int = 1, **metrics: Any) -> None:
    dispatcher.report(iteration, TRIAL, metrics, [metrics], None)


def test_hooks_of_a_run_are_called_in_order() -> None:
    recorder = Recorder()

    def events(dispatcher: CallbackDispatcher) -> None:
        report(dispatcher, 1, loss=1.0)
        dispatcher.checkpoint(1, TRIAL, CHECKPOINT)
        report(dispatcher, 2, loss=0.5)
        dispatcher.end(2, TRIAL, failed=False)

    dispatch([recorder], events)
    assert recorder.hooks == [
        *("setup", "start", "result", "save", "checkpoint", "result", "complete"),
        "experiment_end",
    ]
    arguments = [info for _, info in recorder.calls]
    assert arguments[0] == {"stop": STOP, "num_samples": 1, "total_num_samples": 1}
    assert arguments[1] == {"iteration": 0, "trials": [TRIAL], "trial": TRIAL}
    assert arguments[2] == {
        "iteration": 1,
        "trials": [TRIAL],
        "trial": TRIAL,
        "result": {"loss": 1.0},
    }
    assert arguments[3] == {"iteration": 1, "trials": [TRIAL], "trial": TRIAL}
    assert arguments[4]["checkpoint"] is CHECKPOINT
    assert arguments[5]["result"] == {"loss": 0.5}
    assert arguments[-1] == {"trials": [TRIAL]}


def test_a_failed_run_ends_with_an_error() -> None:
    recorder = Recorder()
    dispatch([recorder], lambda dispatcher: dispatcher.end(0, TRIAL, failed=True))
    assert recorder.hooks == ["setup", "start", "error", "experiment_end"]


@pytest.mark.parametrize(
    ("checkpoint", "restored", "warned"),
    [(CHECKPOINT, True, True), (CHECKPOINT, False, False), (None, True, False)],
)
def test_on_trial_restore_is_called_for_a_restored_run(
    checkpoint: Checkpoint | None, restored: bool, warned: bool
) -> None:
    recorder = Recorder()
    dispatcher = CallbackDispatcher([recorder], pytest.fail, 30.0)
    trial = TrialSnapshot("4913f_00000", "TorchTrainer", "/results/run", checkpoint=checkpoint)
    dispatcher.start(trial, CONTEXT, restored=restored)
    dispatcher.close()
    assert recorder.hooks == ["setup", "start", *(["restore"] if warned else [])]


def test_a_user_callback_sees_every_rank() -> None:
    callback = UserRecorder()
    error = ValueError("rank 1")

    def events(dispatcher: CallbackDispatcher) -> None:
        dispatcher.report(1, TRIAL, {"loss": 1}, [{"loss": 1}, {"loss": 2}], CHECKPOINT)
        dispatcher.checkpoint(1, TRIAL, CHECKPOINT)
        dispatcher.failure(CONTEXT, {1: error})
        dispatcher.end(1, TRIAL, failed=True)

    dispatch([callback], events)
    assert callback.reports == [(CONTEXT, [{"loss": 1}, {"loss": 2}], CHECKPOINT)]
    assert callback.failures == [(CONTEXT, {1: error})]


def test_mixed_lists_and_mixed_classes() -> None:
    class Both(Recorder, UserRecorder):
        def __init__(self) -> None:
            Recorder.__init__(self)
            UserRecorder.__init__(self)

    both, recorder, user = Both(), Recorder(), UserRecorder()
    dispatch([user, both, recorder], lambda dispatcher: report(dispatcher, loss=1))
    assert both.hooks == recorder.hooks == ["setup", "start", "result"]
    assert len(both.reports) == len(user.reports) == 1


def test_a_logger_that_leaves_out_super_init() -> None:
    class LoggingCallback(LoggerCallback):
        def __init__(self) -> None:
            self.results: list[dict[str, Any]] = []

        def log_trial_result(
            self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
        ) -> None:
            self.results.append(trial.last_result)

    callback = LoggingCallback()
    dispatch([callback], lambda dispatcher: report(dispatcher, epoch=0))
    assert callback.results == [{"trial_id": "4913f"}]


def test_an_object_listed_twice_is_called_once() -> None:
    recorder = Recorder()
    dispatch([recorder, recorder], lambda dispatcher: report(dispatcher))
    assert recorder.hooks == ["setup", "start", "result"]


@pytest.mark.parametrize("wrong", [print, "csv", None, int])
def test_what_is_no_callback_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"LoggerCallback.*UserCallback") as caught:
        CallbackDispatcher([Recorder(), wrong], pytest.fail, 30.0)
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize("wrong", [Recorder, UserRecorder])
def test_a_class_in_place_of_an_object_is_refused(wrong: type) -> None:
    with pytest.raises(TypeError, match=rf"{wrong.__name__}\]\): this is the class"):
        CallbackDispatcher([wrong], pytest.fail, 30.0)


def test_one_callback_cannot_change_what_another_or_the_run_sees() -> None:
    class Vandal(Recorder, UserCallback):
        def on_trial_result(
            self,
            iteration: int,
            trials: Sequence[TrialSnapshot],
            trial: TrialSnapshot,
            result: dict[str, Any],
            **info: Any,
        ) -> None:
            result.clear()
            trial.last_result.clear()
            trial.config["lr"] = 0

        def after_report(self, run_context: RunContext, metrics: Any, checkpoint: Any) -> None:
            metrics[0].clear()
            metrics.clear()

    recorder, user = Recorder(), UserRecorder()
    result, ranks = {"loss": 1}, [{"loss": 1}, {"loss": 2}]
    dispatch(
        [Vandal(), recorder, user],
        lambda dispatcher: dispatcher.report(1, TRIAL, result, ranks, None),
    )
    assert recorder.calls[-1][1]["result"] == {"loss": 1}
    assert user.reports[0][1] == ranks == [{"loss": 1}, {"loss": 2}]
    assert (result, TRIAL.last_result) == ({"loss": 1}, {"trial_id": "4913f"})
    assert TRIAL.config == {}


def test_the_driver_may_go_on_with_its_result() -> None:
    recorder = Recorder()
    result = {"done": False}

    def events(dispatcher: CallbackDispatcher) -> None:
        dispatcher.report(1, TRIAL, result, [result], None)
        result["done"] = True

    dispatch([recorder], events)
    assert recorder.calls[-1][1]["result"] == {"done": False}


@pytest.mark.parametrize("error", [ValueError("no disk"), SystemExit(3), KeyboardInterrupt()])
def test_a_raising_hook_is_named_once_and_called_again(error: BaseException) -> None:
    class Broken(Recorder):
        def on_trial_result(self, *args: Any, **info: Any) -> None:
            super().on_trial_result(**info)
            raise error

    broken, healthy, problems = Broken(), Recorder(), Problems()

    def events(dispatcher: CallbackDispatcher) -> None:
        for iteration in range(3):
            report(dispatcher, iteration)
        dispatcher.end(3, TRIAL, failed=False)

    dispatch([broken, healthy], events, problems)
    assert broken.hooks == healthy.hooks
    assert broken.hooks.count("result") == 3
    (problem,) = problems
    assert "Broken.on_trial_result" in problem
    assert type(error).__name__ in problem
    assert str(error) in problem
    assert "test_callbacks.py, line " in problem
    assert "training continues" in problem


def test_each_raising_hook_is_named() -> None:
    class Broken(Callback):
        def setup(self, *args: Any, **info: Any) -> None:
            raise ValueError("first")

        def on_trial_start(self, *args: Any, **info: Any) -> None:
            raise ValueError("second\nline " + "x" * 1000)

    problems = Problems()
    dispatch([Broken()], report, problems)
    first, second = problems
    assert "Broken.setup raised ValueError: first" in first
    assert "Broken.on_trial_start raised ValueError: second line x" in second
    assert len(second) < 500


def test_a_problem_that_cannot_be_shown_stops_nothing() -> None:
    class Broken(Recorder):
        def on_trial_start(self, *args: Any, **info: Any) -> None:
            raise ValueError

    def closed_console(problem: str) -> None:
        raise BrokenPipeError

    broken = Broken()
    dispatch([broken], report, closed_console)
    assert broken.hooks == ["setup", "result"]


def test_a_stalled_callback_holds_up_nobody(blocked: Blocked) -> None:
    seen = threading.Event()

    class Watcher(Callback):
        def on_trial_complete(self, *args: Any, **info: Any) -> None:
            seen.set()

    def events(dispatcher: CallbackDispatcher) -> None:
        report(dispatcher, 1)
        assert blocked.entered.wait(120)
        for iteration in range(2, 1001):
            report(dispatcher, iteration)
        dispatcher.end(1000, TRIAL, failed=False)
        assert seen.wait(120)
        assert blocked.results == 0
        blocked.go.set()

    dispatch([blocked, Watcher()], events)
    assert blocked.results == 1000


def test_a_stalled_hook_is_named_while_it_runs(
    blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_calls, "SLOW_HOOK_S", 0.05)
    problems = Problems()

    def events(dispatcher: CallbackDispatcher) -> None:
        report(dispatcher)
        assert problems.first.wait(120)
        assert blocked.results == 0
        blocked.go.set()
        report(dispatcher)

    dispatch([blocked, Recorder()], events, problems)
    (problem,) = (problem for problem in problems if "on_trial_result" in problem)
    assert "Blocked.on_trial_result has been running for 0.05 s; training continues" in problem
    assert blocked.results == 2


def test_a_hook_that_starts_late_in_the_watch_gets_its_full_time(
    blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_calls, "SLOW_HOOK_S", 0.4)
    problems = Problems()
    started = 0.0

    def events(dispatcher: CallbackDispatcher) -> None:
        nonlocal started
        problems.first.wait(0.2)  # the watch that began with setup is half over
        started = time.monotonic()
        report(dispatcher)
        assert problems.first.wait(120)
        blocked.go.set()

    dispatch([blocked], events, problems)
    assert time.monotonic() - started >= 0.4
    assert len(problems) == 1


def test_close_names_who_is_not_done_and_returns(blocked: Blocked) -> None:
    all_there = threading.Event()

    class Fifth(Recorder):
        def on_trial_result(self, *args: Any, **info: Any) -> None:
            super().on_trial_result(**info)
            if self.hooks.count("result") == 5:
                all_there.set()

    problems = Problems()
    recorder = Fifth()
    dispatcher = CallbackDispatcher([blocked, recorder], problems, 0.5)
    dispatcher.start(TRIAL, CONTEXT)
    for iteration in range(5):
        report(dispatcher, iteration)
    assert blocked.entered.wait(120)
    assert all_there.wait(120)
    begun = time.monotonic()
    dispatcher.close()
    dispatcher.close()
    assert time.monotonic() - begun < 100
    (problem,) = problems
    assert "0.5 s" in problem
    assert "Blocked;" in problem
    assert "Fifth" not in problem
    assert recorder.hooks.count("result") == 5
    blocked.go.set()
    assert blocked.thread is not None
    blocked.thread.join(120)
    assert not blocked.thread.is_alive()
    assert blocked.results == 1


def test_close_without_start() -> None:
    CallbackDispatcher([Recorder()], pytest.fail, 30.0).close()


def test_events_after_close_are_ignored() -> None:
    recorder = Recorder()
    dispatcher = CallbackDispatcher([recorder], pytest.fail, 30.0)
    dispatcher.start(TRIAL, CONTEXT)
    dispatcher.close()
    report(dispatcher)
    assert recorder.hooks == ["setup", "start"]


def test_threads_are_gone_after_close() -> None:
    before = set(threading.enumerate())
    dispatch([Recorder(), UserRecorder()], report)
    assert set(threading.enumerate()) <= before


class Batched(TrackerCallback):
    batched = True

    def __init__(self) -> None:
        self.log: list[int | str] = []
        self.flushed = threading.Event()

    def on_trial_result(self, iteration: int, *args: Any, **info: Any) -> None:
        self.log.append(iteration)

    def flush_batch(self) -> None:
        self.log.append("flush")
        self.flushed.set()


def test_a_batched_callback_gets_many_events_before_it_flushes() -> None:
    callback = Batched()

    def events(dispatcher: CallbackDispatcher) -> None:
        for iteration in range(1000):
            report(dispatcher, iteration)

    dispatch([callback], events)
    assert [entry for entry in callback.log if entry != "flush"] == list(range(1000))
    assert callback.log[-1] == "flush"
    assert callback.log.count("flush") <= 30


def test_a_batched_callback_may_be_a_user_callback_too() -> None:
    class Both(Batched, UserRecorder):
        def __init__(self) -> None:
            Batched.__init__(self)
            UserRecorder.__init__(self)

    callback = Both()

    def events(dispatcher: CallbackDispatcher) -> None:
        for iteration in range(3):
            report(dispatcher, iteration)

    dispatch([callback], events)
    assert callback.log == [0, 1, 2, "flush"]
    assert len(callback.reports) == 3


def test_a_batched_callback_flushes_during_the_run() -> None:
    callback = Batched()

    def events(dispatcher: CallbackDispatcher) -> None:
        report(dispatcher, 1)
        assert callback.flushed.wait(120)
        assert callback.log == [1, "flush"]

    dispatch([callback], events)


def test_closing_cuts_the_wait_for_a_batch_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback_lane, "BATCH_S", 150.0)
    callback = Batched()
    begun = time.monotonic()
    dispatch([callback], lambda dispatcher: report(dispatcher, 1))
    assert time.monotonic() - begun < 100
    assert callback.log == [1, "flush"]


def test_reporting_costs_the_driver_next_to_nothing() -> None:
    """As much as copying a row a few times, on this machine as it is now."""
    result: dict[str, Any] = {str(key): key for key in range(25)}
    costs: list[tuple[float, float]] = []

    def events(dispatcher: CallbackDispatcher) -> None:
        # Coverage slows Python's code down, and not the copying of a dict.
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            measure(dispatcher)
        finally:
            sys.settrace(tracer)

    def measure(dispatcher: CallbackDispatcher) -> None:
        for _ in range(50):
            begun = time.thread_time()
            for _ in range(100):
                dict(result)
            copied = time.thread_time()
            for iteration in range(100):
                dispatcher.report(iteration, TRIAL, result, [result], None)
            costs.append((copied - begun, time.thread_time() - copied))

    dispatch([Batched()], events)
    copies, reports = (min(cost) for cost in zip(*costs, strict=True))
    assert reports < 15 * copies


class Slow(Blocked):
    max_waiting = 5


def test_what_waits_for_a_stalled_callback_is_bounded_and_that_is_said_once() -> None:
    slow, patient, problems = Slow(), Blocked(), Problems()

    def events(dispatcher: CallbackDispatcher) -> None:
        report(dispatcher, 1)
        assert slow.entered.wait(120)
        for iteration in range(2, 1001):
            report(dispatcher, iteration)
            dispatcher.checkpoint(iteration, TRIAL, CHECKPOINT)
        dispatcher.end(1000, TRIAL, failed=False)
        slow.go.set()
        patient.go.set()

    dispatch([slow, patient], events, problems)
    (problem,) = problems
    assert "Slow.on_trial_result is 5 events behind" in problem
    assert "; progress.csv has " in problem
    assert slow.results < 10
    assert patient.results == 1000


def test_a_callback_may_refuse_a_run_before_it_starts() -> None:
    class Refusing(TrackerCallback):
        def check_before_run(self) -> None:
            raise ValueError("no key")

    with pytest.raises(ValueError, match="no key"):
        CallbackDispatcher([Recorder(), Refusing()], pytest.fail, 30.0)


def test_a_callback_of_the_users_own_has_the_documented_options() -> None:
    class Own(Callback):
        uses_directory = False
        max_waiting = 5
        end_timeout_s = 7.0

    class Refusing(Callback):
        def check_before_run(self) -> None:
            raise ValueError("no key")

    lane = callback_lane.CallbackLane(Own(), pytest.fail, None, None, 0)
    assert not lane.uses_directory
    assert (lane._limit, lane.end_timeout_s, lane.batched) == (5, 7.0, False)
    with pytest.raises(ValueError, match="no key"):
        CallbackDispatcher([Recorder(), Refusing()], pytest.fail, 30.0)


def test_a_callback_may_ask_for_more_time_at_the_end(blocked: Blocked) -> None:
    blocked.end_timeout_s = 20.0
    problems = Problems()
    dispatcher = CallbackDispatcher([blocked], problems, 0.0)
    dispatcher.start(TRIAL, CONTEXT)
    report(dispatcher)
    assert blocked.entered.wait(120)
    threading.Timer(0.1, blocked.go.set).start()
    dispatcher.close()
    assert (blocked.results, problems) == (1, [])


class Elsewhere(Blocked):
    uses_directory = False


def test_a_directory_waits_for_those_who_use_it(blocked: Blocked) -> None:
    stalled, gone = Elsewhere(), threading.Event()

    def events(dispatcher: CallbackDispatcher) -> None:
        report(dispatcher)
        assert blocked.entered.wait(120)
        assert stalled.entered.wait(120)
        dispatcher.after_files(gone.set)
        assert not gone.wait(0.1)
        blocked.go.set()
        assert gone.wait(120)
        assert (blocked.results, stalled.results) == (1, 0)
        stalled.go.set()

    dispatch([blocked, stalled, Batched()], events)


def test_a_directory_waits_a_while_only(blocked: Blocked) -> None:
    problems = Problems()
    dispatcher = CallbackDispatcher([blocked, Batched()], problems, 0.1)
    dispatcher.start(TRIAL, CONTEXT)
    report(dispatcher)
    gone: list[int] = []
    late = threading.Event()

    def done() -> None:
        gone.append(blocked.results)
        late.set()

    dispatcher.after_files(done)
    assert late.wait(120)
    blocked.go.set()
    dispatcher.after_files(late.set)
    dispatcher.close()
    assert gone == [0]


def test_a_callback_that_was_late_is_not_waited_for_again_until_it_has_caught_up(
    blocked: Blocked,
) -> None:
    problems = Problems()
    dispatcher = CallbackDispatcher([blocked, Batched()], problems, 0.2)
    dispatcher.start(TRIAL, CONTEXT)
    report(dispatcher)
    assert blocked.entered.wait(120)

    def goes_within(seconds: float) -> bool:
        gone = threading.Event()
        dispatcher.after_files(gone.set)
        return gone.wait(seconds)

    assert goes_within(120)  # after the 0.2 s
    dispatcher._flush_s = 60.0
    assert goes_within(120)
    assert goes_within(120)
    blocked.go.set()
    deadline = time.monotonic() + 120
    while dispatcher._lanes[0].is_late and time.monotonic() < deadline:
        time.sleep(0.01)
    blocked.go.clear()
    blocked.entered.clear()
    report(dispatcher)
    assert blocked.entered.wait(120)
    assert not goes_within(0.2)
    blocked.go.set()
    dispatcher.close()
    assert problems == []


class Counting(Callback):
    """Counts results over restores; each of two in a list has its own count."""

    def __init__(self, start: int) -> None:
        self.count = start
        self.hooks: list[str] = []

    def on_trial_start(self, *args: Any, **info: Any) -> None:
        self.hooks.append(f"start at {self.count}")

    def on_trial_result(self, *args: Any, **info: Any) -> None:
        self.count += 1

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def run_at(path: Path, restored: bool, *callbacks: Callback, end: bool = True) -> list[str]:
    trial = TrialSnapshot("4913f_00000", "TorchTrainer", str(path), restored=restored)
    problems = Problems()
    dispatcher = CallbackDispatcher(callbacks, problems, 30.0)
    dispatcher.start(trial, CONTEXT, restored=restored)
    dispatcher.report(1, trial, {}, [{}], None)
    dispatcher.checkpoint(1, trial, CHECKPOINT)
    dispatcher.report(2, trial, {}, [{}], None)
    if end:
        dispatcher.end(2, trial, failed=False)
    dispatcher.close()
    return problems


@pytest.mark.parametrize(("end", "kept"), [(True, 2), (False, 1)])
def test_a_callbacks_state_outlives_its_driver(tmp_path: Path, end: bool, kept: int) -> None:
    assert run_at(tmp_path, False, Counting(0), Counting(100), end=end) == []
    first, second = Counting(0), Counting(0)
    assert run_at(tmp_path, True, first, second) == []
    assert first.hooks == [f"start at {kept}"]
    assert second.hooks == [f"start at {100 + kept}"]
    fresh = Counting(7)
    run_at(tmp_path, False, fresh)
    assert fresh.hooks == ["start at 7"]


def test_a_state_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    class Unpicklable(Counting):
        def get_state(self) -> dict[str, Any]:
            return {"lock": threading.Lock()}

    (problem,) = run_at(tmp_path, False, Unpicklable(0))
    assert "Unpicklable.get_state raised TypeError" in problem


@pytest.mark.parametrize("more", [False, True])
def test_a_state_that_comes_too_soon_is_kept_later(tmp_path: Path, more: bool) -> None:
    counting = Counting(0)
    dispatcher = CallbackDispatcher([counting], pytest.fail, 30.0, trials=[], states=str(tmp_path))
    dispatcher.begin(None, 1)
    trial = TrialSnapshot("4913f_00000", "train", str(tmp_path))
    dispatcher.start(trial, CONTEXT)
    for iteration in (1, 2):
        dispatcher.report(iteration, trial, {}, [{}], None)
        dispatcher.checkpoint(iteration, trial, CHECKPOINT)
    file = tmp_path / "callback_Counting_0.pkl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if file.exists() and pickle.loads(file.read_bytes())["count"] >= 2:
            break
        if more:  # it is never without events
            dispatcher.report(3, trial, {}, [{}], None)
        time.sleep(0.01)
    assert pickle.loads(file.read_bytes())["count"] >= 2
    dispatcher.close()


def test_a_postponed_state_is_kept_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_lane, "STATE_S", 600.0)
    dispatcher = CallbackDispatcher(
        [Counting(0)], pytest.fail, 30.0, trials=[], states=str(tmp_path)
    )
    dispatcher.begin(None, 1)
    trial = TrialSnapshot("4913f_00000", "train", str(tmp_path))
    dispatcher.start(trial, CONTEXT)
    for iteration in (1, 2):
        dispatcher.report(iteration, trial, {}, [{}], None)
        dispatcher.checkpoint(iteration, trial, CHECKPOINT)
    dispatcher.close()  # without an end: it was interrupted
    assert pickle.loads((tmp_path / "callback_Counting_0.pkl").read_bytes()) == {"count": 2}
