"""DataParallelTrainer: hands a training function to a controller and waits for the Result."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any

from lockstep import runtime, settings
from lockstep.callback import RunContext
from lockstep.checkpoint import Checkpoint
from lockstep.config import RunConfig, ScalingConfig
from lockstep.console import Display, make_display
from lockstep.engine import Engine, GroupSpec, choose_engine
from lockstep.engine.loop import EventLoop
from lockstep.errors import TrainingInterrupted, WorkerGroupError
from lockstep.metrics import normalise
from lockstep.result import Result
from lockstep.trackers import CSVLoggerCallback, JsonLoggerCallback
from lockstep.train.backend import BackendConfig
from lockstep.train.callbacks import CallbackDispatcher
from lockstep.train.context import TrainContext
from lockstep.train.controller import Controller
from lockstep.train.events import Phase
from lockstep.train.failure import describe
from lockstep.train.run import Run
from lockstep.train.serialize import dump, dump_function
from lockstep.train.session import Faults
from lockstep.train.state import RunState
from lockstep.train.worker import ENTRY, WorkerSetup, takes_config

__all__ = ["BaseTrainer", "DataParallelTrainer"]


class BaseTrainer(ABC):
    """Something that can be fitted. What all trainers share: configs, checked when given."""

    def __init__(
        self,
        *,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        self.scaling_config = _checked(scaling_config, ScalingConfig, "scaling_config")
        self.run_config = _checked(run_config, RunConfig, "run_config")
        if datasets:
            raise ValueError(
                f"datasets={sorted(datasets)}: this version has no lockstep.data yet; "
                "load the data inside the training function."
            )
        self.metadata = dict(metadata or {})
        if resume_from_checkpoint is not None and not isinstance(
            resume_from_checkpoint, Checkpoint
        ):
            raise TypeError(
                f"resume_from_checkpoint={resume_from_checkpoint!r}: expected a Checkpoint, "
                "such as result.checkpoint or Checkpoint('path/to/checkpoint_000003')."
            )
        self.resume_from_checkpoint = resume_from_checkpoint

    @abstractmethod
    def fit(self) -> Result:
        """Run to the end and return what came of it."""


class DataParallelTrainer(BaseTrainer):
    """Runs one function on every worker.

    Args:
        train_loop_per_worker: the training function, with no argument or one, the config.
        train_loop_config: handed to the function; ``{}`` by default.
        backend_config: the framework to set up between workers; none by default.
        scaling_config: how many workers, with what; one by default.
        run_config: where the run lives and how it behaves.
        metadata: kept for ``get_context().get_metadata()``.
        resume_from_checkpoint: what ``get_checkpoint()`` returns at the beginning.
        fault_plan: for tests: a ``lockstep.testing.FaultPlan`` to inject.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        fault_plan: Faults | None = None,
    ) -> None:
        super().__init__(
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )
        if not callable(train_loop_per_worker):
            raise TypeError(
                f"train_loop_per_worker={train_loop_per_worker!r}: expected a function."
            )
        takes_config(train_loop_per_worker)
        if train_loop_config is not None and not isinstance(train_loop_config, Mapping):
            raise TypeError(f"train_loop_config={train_loop_config!r}: expected a dict.")
        self.train_loop_per_worker = train_loop_per_worker
        self.train_loop_config = dict(train_loop_config or {})
        self.backend_config = backend_config or BackendConfig()
        if fault_plan is not None and not callable(fault_plan):
            raise TypeError(f"fault_plan={fault_plan!r}: expected a lockstep.testing.FaultPlan.")
        self.fault_plan = fault_plan

    def fit(self) -> Result:
        """Run the training function on every worker; return when all have finished.

        Raises:
            TrainingFailedError: workers failed more often than allowed. ``__cause__`` is the
                first one's own exception; ``.result`` what the run had achieved.
            TrainingInterrupted: Ctrl-C (a KeyboardInterrupt).
            InsufficientResourcesError: there are fewer GPUs than asked for.
            TypeError: the function or its config cannot be sent to workers.
        """
        in_process = self.scaling_config.num_workers == 0
        engine = choose_engine("inprocess" if in_process else runtime.current().engine)
        backend = self.backend_config.make_backend()
        sent = {
            "function": dump_function(self.train_loop_per_worker, self.train_loop_config),
            "backend": dump(backend, "backend"),
            "metadata": dump(self.metadata, "metadata"),
            "faults": dump(self.fault_plan, "fault_plan") if self.fault_plan else b"",
        }
        environment = {**backend.environment(), **runtime.current().env_vars}
        spec = GroupSpec(
            size=max(1, self.scaling_config.num_workers),
            entry=ENTRY,
            payload=b"",
            preload=("lockstep.train.worker", *backend.preload),
            environment=environment,
            cpus_per_worker=self.scaling_config.num_cpus_per_worker,
            gpus_per_worker=self.scaling_config.num_gpus_per_worker,
        )
        warnings = engine.check(spec)
        display = make_display(self.run_config.verbose, interactive_function=in_process)
        callbacks = CallbackDispatcher(
            [*self.run_config.callbacks, CSVLoggerCallback(), JsonLoggerCallback()],
            lambda text: display.message(text, "warning"),
            settings.callback_flush_seconds(),
        )
        run = Run(
            type(self).__name__,
            self.run_config,
            {"train_loop_config": _describable(self.train_loop_config)},
            spec.size,
        )
        setup = WorkerSetup(
            **sent,
            context=self._context(run),
            storage=run.storage,
            score_attribute=self.run_config.checkpoint_config.checkpoint_score_attribute,
            single_machine=engine.single_machine,
            use_gpu=self.scaling_config.use_gpu,
            working_dir=self.run_config.working_dir,
        )
        for text in warnings:
            display.message(text, "warning")
        state = _drive(
            engine=engine,
            run=run,
            group_spec=replace(spec, payload=pickle.dumps(setup, 5)),
            run_config=self.run_config,
            run_context=self._run_context(run),
            callbacks=callbacks,
            display=display,
            start_from=self.resume_from_checkpoint,
        )
        return self._conclude(run, state)

    def _context(self, run: Run) -> TrainContext:
        resources: dict[str, float] = {"CPU": self.scaling_config.num_cpus_per_worker or 1}
        if self.scaling_config.use_gpu:
            resources["GPU"] = self.scaling_config.num_gpus_per_worker
        return TrainContext(
            trial_id=run.trial_id,
            trial_name=run.name,
            trial_dir=run.directory,
            experiment_name=run.experiment_name,
            storage_path=run.storage.uri,
            trial_resources=resources,
        )

    def _run_context(self, run: Run) -> RunContext:
        return RunContext(
            run_config=self.run_config,
            trial_id=run.trial_id,
            path=run.storage.root,
            experiment_name=run.experiment_name,
            train_loop_config=self.train_loop_config,
            scaling_config=self.scaling_config,
        )

    def _conclude(self, run: Run, state: RunState) -> Result:
        result = run.result()
        if state.phase is Phase.FAILED:
            text = describe(state.failures, state.attempt, state.world_size)
            raise WorkerGroupError(
                f"{text} The run is in {run.storage.uri}.", result.worker_failures, result
            ) from result.error
        if state.phase is Phase.INTERRUPTED:
            _install_quiet_excepthook()
            raise TrainingInterrupted(_resume_advice(run, result, type(self).__name__), result)
        return result


def _drive(
    *,
    engine: Engine,
    run: Run,
    callbacks: CallbackDispatcher,
    display: Display,
    **controller_arguments: Any,
) -> RunState:
    """Run the controller's loop to the run's end, and put everything away whatever happens."""
    with ExitStack() as cleanup:
        cleanup.callback(run.close)
        loop = EventLoop()
        cleanup.callback(loop.close)
        cleanup.callback(callbacks.close)
        controller = Controller(
            engine=engine,
            loop=loop,
            run=run,
            callbacks=callbacks,
            display=display,
            **controller_arguments,
        )
        cleanup.callback(lambda: display.finish(controller.status()))
        cleanup.callback(controller.close)
        with _ctrl_c(controller, engine):
            controller.start()
            loop.run_until(lambda: controller.state.phase.ended)
        callbacks.close()
        run.end(controller.state.phase)
        run.sync()
        return controller.state


@contextmanager
def _ctrl_c(controller: Controller, engine: Engine) -> Iterator[None]:
    """While a run is driven, Ctrl-C is an event of it instead of an exception anywhere.

    In-process the function itself is to be interrupted, so there Python's own handler stays.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or engine.name == "inprocess" or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        controller.interrupt()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _resume_advice(run: Run, result: Result, trainer: str) -> str:
    kept = f"{run.rows} report(s) and {len(run.checkpoints)} checkpoint(s) are kept"
    text = f"Interrupted: {kept} in {run.storage.uri}."
    if result.checkpoint is not None:
        text += (
            f" To go on from the newest: {trainer}(…, "
            f"resume_from_checkpoint=Checkpoint({result.checkpoint.uri!r}))."
        )
    return text


def _install_quiet_excepthook() -> None:
    """An interrupted script ends with the one sentence, not with a traceback around it."""
    before = sys.excepthook
    if getattr(before, "quiet", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, TrainingInterrupted):
            print(f"\n{error}", file=sys.stderr)
            _die_of_ctrl_c()
        else:
            before(kind, error, trace)

    hook.quiet = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _die_of_ctrl_c() -> None:
    """End as Python does for a KeyboardInterrupt (not for a subclass): killed by SIGINT.

    A shell loop around the script stops then, too.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _describable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as the journal keeps it: what JSON cannot hold, as its repr."""
    plain = {}
    for key, value in config.items():
        try:
            plain.update(normalise({key: value}))
        except (TypeError, ValueError):
            plain[str(key)] = repr(value)
    return plain


def _checked(value: Any, kind: type, name: str) -> Any:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"{name}={value!r}: expected a {kind.__name__}.")
    return value
