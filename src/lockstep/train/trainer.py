"""DataParallelTrainer: hands a training function to a controller and waits for the Result."""

from __future__ import annotations

import copy
import inspect
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from lockstep import runtime, settings
from lockstep.callback import RunContext
from lockstep.checkpoint import PREPROCESSOR_KEY, Checkpoint
from lockstep.config import RunConfig, ScalingConfig
from lockstep.console import make_display
from lockstep.console.text import plural
from lockstep.engine import Engine, GroupSpec, choose_engine
from lockstep.engine.resources import ACCELERATOR
from lockstep.errors import (
    ControllerError,
    EngineError,
    HangError,
    InsufficientResourcesError,
    LockstepError,
    NCCLHangError,
    PreemptedError,
    PreemptionError,
    StopConditionError,
    StorageError,
    TrainingInterrupted,
    TrainingPreempted,
    WorkerGroupError,
)
from lockstep.journal.lock import is_locked
from lockstep.journal.records import RunRecords, newest_run, start_time
from lockstep.metrics import describable
from lockstep.redact import redact
from lockstep.result import Result
from lockstep.run_layout import JOURNAL_FILE, newest_directories
from lockstep.storage import Storage
from lockstep.trackers import CSVLoggerCallback, JsonLoggerCallback
from lockstep.trackers.complete import complete_tables
from lockstep.train.backend import (
    Backend,
    BackendConfig,
    check_backend,
    has_ray_backend,
    without_unasked_gpus,
)
from lockstep.train.context import TrainContext
from lockstep.train.datasets import (
    PRELOADED,
    check_dataset_config,
    check_datasets,
    check_positions,
    check_preprocessor,
    plan_datasets,
    preprocessed,
)
from lockstep.train.driver.callbacks import CallbackDispatcher
from lockstep.train.driver.drive import (
    drive,
    failure_text,
    install_quiet_excepthook,
    resume_advice,
)
from lockstep.train.driver.events import Phase
from lockstep.train.driver.reloading import Reloading
from lockstep.train.driver.run_plan import RunPlan
from lockstep.train.driver.scaling import ScalingPolicy
from lockstep.train.driver.state import RunState
from lockstep.train.driver.validations import ValidationPlan
from lockstep.train.function.arguments import config_like, takes_config
from lockstep.train.function.serialize import LARGE_CAPTURE, dump, dump_function, large_captures
from lockstep.train.function.sources import changed_note, differing_sources, name_of, sources_of
from lockstep.train.protocol import VALIDATION_ENTRY, WORKER_ENTRY, Faults, WorkerSetup
from lockstep.train.record.fork import Fork, choose_fork
from lockstep.train.record.run import Run, experiment_storage
from lockstep.train.record.saved_trainer import (
    is_saved,
    run_storage,
    save_trainer,
    saved_sources,
    saved_trainer,
)
from lockstep.train.streams import ConfiguredPlan, RayDataset, StreamPlan, Streams
from lockstep.train.training_loop import (
    SHARED_ARGUMENTS,
    TrainingLoop,
    arguments_of,
    one_worker,
    worker_run_config,
)
from lockstep.train.validation import ValidationConfig
from lockstep.warm import reload_session
from lockstep.warm.reload_session import ReloadSession

if TYPE_CHECKING:
    import pyarrow.fs
    from typing_extensions import Self

    from lockstep.data import DataConfig, DatasetConfig
    from lockstep.data.preprocessor import Preprocessor
    from lockstep.data.sources.shared_tables import SharedTables

__all__ = ["BaseTrainer", "DataParallelTrainer", "TrainerPayload"]


@dataclass(frozen=True)
class TrainerPayload:
    """What the runs of one trainer share: the workers' part of a setup, and what they run on."""

    engine: Engine
    setup: Mapping[str, Any]
    """The fields of ``WorkerSetup`` that do not depend on the run, pickled."""
    scaling: ScalingPolicy
    group: GroupSpec
    """Without a payload, which belongs to a run."""
    warnings: Sequence[str]
    all_announcements: bool
    """Every worker gets the announcements of all ranks."""
    validation: ValidationPlan | None = None
    tables: SharedTables | None = None
    """The datasets' tables in memory. Workers can map them while this object exists."""
    streams: Mapping[str, StreamPlan | ConfiguredPlan] = field(default_factory=dict)
    """The datasets that are divided again for each attempt."""


class BaseTrainer:
    """What all trainers share: configs, checked when given.

    A subclass implements ``training_loop``, which ``fit`` runs in one worker process. The trainer
    is created again there, with the same arguments; then ``setup``, ``preprocess_datasets`` and
    ``training_loop`` are called. The loop calls ``train.report()`` and ``train.get_checkpoint()``
    as a training function does. With a ``Tuner``, the keys of the ``param_space`` are the
    arguments of the subclass.

    Attributes:
        datasets: in the worker, datasets; functions that return one have been called.
        resume_from_checkpoint, starting_checkpoint: in the worker, the newest checkpoint.
    """

    _restored_from: Storage | None = None
    _changed = False

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Remember the arguments: the trainer is created with them again in a worker."""
        trainer = super().__new__(cls)
        trainer._arguments = arguments_of(cls, args, options)
        return trainer

    _arguments: dict[str, Any]

    def __init__(
        self,
        *,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        preprocessor: Preprocessor | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        self.scaling_config = _checked(scaling_config, ScalingConfig, "scaling_config")
        self.run_config = _checked(run_config, RunConfig, "run_config")
        self.datasets: dict[str, Any] = check_datasets(datasets)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"metadata={metadata!r}: expected a dict.")
        self.metadata = dict(metadata or {})
        self.preprocessor = check_preprocessor(preprocessor)
        if resume_from_checkpoint is not None and not isinstance(
            resume_from_checkpoint, Checkpoint
        ):
            raise TypeError(
                f"resume_from_checkpoint={resume_from_checkpoint!r}: expected a Checkpoint, "
                "such as result.checkpoint or Checkpoint('path/to/checkpoint_000003')."
            )
        self.resume_from_checkpoint = resume_from_checkpoint

    @property
    def starting_checkpoint(self) -> Checkpoint | None:
        """Older name of ``resume_from_checkpoint``."""
        return self.resume_from_checkpoint

    def setup(self) -> None:
        """Called before ``preprocess_datasets``, where the loop runs. Does nothing by default."""

    def preprocess_datasets(self) -> None:
        """Called before ``training_loop``, where the loop runs. Does nothing by default."""

    def training_loop(self) -> None:
        """What the trainer does. A subclass implements it."""
        raise NotImplementedError(
            f"{type(self).__name__}.training_loop() is not implemented here; implement it without "
            "super(), or give DataParallelTrainer a training function."
        )

    def fit(self) -> Result:
        """Run ``training_loop`` in a worker, to the end, and return what came of it.

        Raises:
            TrainingFailedError: the loop failed more often than allowed; ``__cause__`` is its own
                exception.
            TypeError: the class has no ``training_loop``, or an argument cannot be sent.
        """
        return self.as_trainable().fit()

    @property
    def _has_loop(self) -> bool:
        return type(self).training_loop is not BaseTrainer.training_loop

    def as_trainable(self) -> DataParallelTrainer:
        """The trainer in the form that ``Tuner`` and ``tune.run`` take, which take this one, too.

        Raises:
            TypeError: the class has no ``training_loop``.
        """
        if not self._has_loop:
            raise TypeError(
                f"{type(self).__name__} has no training_loop(self); implement it, or use "
                "DataParallelTrainer with a training function."
            )
        return _LoopTrainer.of(self)

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
        datasets: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        **arguments: Any,
    ) -> Self:
        """A trainer that resumes an earlier run, from its newest checkpoint, in its directory.

        This executes code that is kept in the directory: restore only what you trust.

        Args:
            path: the run's directory, or an experiment's (its newest run).
            storage_filesystem: a ``pyarrow.fs.FileSystem`` that ``path`` is a path on.
            datasets, scaling_config, run_config: instead of the run's own.
            arguments: of the subclass, instead of those that the run was started with.

        Raises:
            FileNotFoundError: there is no run, or nothing to restore it with.
            ValueError: it is the run of another class.
        """
        inner = _LoopTrainer.restore(path, storage_filesystem, run_config=run_config)
        loop = inner.train_loop_per_worker
        if not isinstance(loop, TrainingLoop) or loop.trainer_class.__name__ != cls.__name__:
            of = inner.trainer_name if isinstance(loop, TrainingLoop) else "another trainer"
            raise ValueError(
                f"{cls.__name__}.restore({redact(os.fspath(path))!r}): it is a run of {of}; "
                "restore it with the class that started it."
            )
        shared = {
            **loop.shared,
            "run_config": inner.run_config,
            "resume_from_checkpoint": inner.resume_from_checkpoint,
        }
        if datasets is not None:
            shared["datasets"] = {**shared["datasets"], **datasets}
        if scaling_config is not None:
            shared["scaling_config"] = scaling_config
        given = loop.given | ({"datasets"} if datasets is not None else set())
        own = {**inner.train_loop_config, **arguments}
        trainer = cls(**own, **{name: shared[name] for name in shared if name in given})
        for name, value in shared.items():
            setattr(trainer, name, check_datasets(value) if name == "datasets" else value)
        trainer._restored_from = inner._restored_from
        trainer._changed = bool(arguments or datasets or scaling_config or run_config)
        return trainer

    @classmethod
    def can_restore(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
    ) -> bool:
        """Whether ``restore(path)`` would find a run."""
        try:
            return is_saved(run_storage(path, storage_filesystem))
        except FileNotFoundError:
            return False


class DataParallelTrainer(BaseTrainer):
    """Runs one function on every worker.

    Args:
        train_loop_per_worker: the training function, with no argument or one, the config.
        train_loop_config: passed to the function; a dict class with attributes keeps its class.
            ``{}`` by default.
        backend_config: the framework to set up between workers; none by default.
        scaling_config: how many workers, with what; one by default.
        run_config: the run's storage, name, failure handling and callbacks.
        datasets: by name; ``get_dataset_shard(name)`` returns a worker's shard. Datasets of
            lockstep, Ray Data, Hugging Face or torch, pandas frames, Arrow tables, or functions
            that return one, which ``fit`` calls.
        dataset_config: how datasets are sharded: a ``DataConfig``, or a ``DatasetConfig`` by name.
        metadata: returned by ``get_context().get_metadata()`` and, what JSON can hold of it, by
            ``get_metadata()`` of every checkpoint that the run uploads.
        preprocessor: of ``lockstep.data.preprocessors``: ``fit`` fits it on the dataset
            ``"train"``, unless it is fitted, and transforms all datasets with it.
            ``get_preprocessor()`` of every checkpoint that the run uploads returns it.
        resume_from_checkpoint: returned by ``get_checkpoint()`` at the start.
        validation_config: how ``report(…, validation=True)`` validates a checkpoint.
        fault_plan: for tests: a ``lockstep.testing.FaultPlan`` to inject.
    """

    _backend_config_class: ClassVar[type[BackendConfig]] = BackendConfig
    """Of the ``backend_config`` where the constructor and ``restore`` get none."""
    _takes_every_gpu: ClassVar[bool] = False
    """Whether the framework occupies all GPUs that a process sees."""

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | Mapping[str, DatasetConfig] | None = None,
        metadata: Mapping[str, Any] | None = None,
        preprocessor: Preprocessor | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        validation_config: ValidationConfig | None = None,
        fault_plan: Faults | None = None,
    ) -> None:
        super().__init__(
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            metadata=metadata,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
        )
        self.dataset_config = check_dataset_config(dataset_config, self.datasets)
        kept = self.run_config.checkpoint_config
        if kept.checkpoint_frequency or kept.checkpoint_at_end:
            raise ValueError(
                f"CheckpointConfig(checkpoint_frequency={kept.checkpoint_frequency}, "
                f"checkpoint_at_end={kept.checkpoint_at_end}) is for tune.Trainable classes; a "
                "training function decides by itself: report(metrics, checkpoint=…)."
            )
        if not callable(train_loop_per_worker):
            raise TypeError(
                f"train_loop_per_worker={train_loop_per_worker!r}: expected a function."
            )
        takes_config(train_loop_per_worker)
        if train_loop_config is not None and not isinstance(train_loop_config, Mapping):
            raise TypeError(f"train_loop_config={train_loop_config!r}: expected a dict.")
        self.train_loop_per_worker = train_loop_per_worker
        given = train_loop_config or {}
        self.train_loop_config = config_like(given, given)
        if not self._has_loop:
            # Only a training_loop is run by creating its trainer again. The arguments may hold
            # what cannot be pickled, and everything that counts is in the attributes.
            self._arguments = {}
        if backend_config is not None and not isinstance(backend_config, BackendConfig):
            raise TypeError(f"backend_config={backend_config!r}: expected a BackendConfig.")
        self.backend_config = backend_config or self._backend_config_class()
        check_backend(self.backend_config)
        if fault_plan is not None and not callable(fault_plan):
            raise TypeError(f"fault_plan={fault_plan!r}: expected a lockstep.testing.FaultPlan.")
        self.fault_plan = fault_plan
        if validation_config is not None and not isinstance(validation_config, ValidationConfig):
            raise TypeError(
                f"validation_config={validation_config!r}: expected a ValidationConfig."
            )
        self.validation_config = validation_config
        self._restored_from: Storage | None = None
        self._changed = False
        self._kept_sources: Mapping[str, str] | None = None
        self._fork: Fork | None = None

    @property
    def sources(self) -> Mapping[str, str]:
        """Internal: file → source code of the training function, as it was pickled."""
        if self._kept_sources is None:
            return sources_of(self.train_loop_per_worker)
        return self._kept_sources

    @property
    def _engine(self) -> Engine:
        in_process = self.scaling_config.num_workers == 0
        return choose_engine("inprocess" if in_process else runtime.current().engine)

    def fit(self) -> Result:
        """Run the training function on every worker; return when all have finished.

        Raises:
            TrainingFailedError: workers failed more often than allowed. ``__cause__`` is the
                first one's own exception; ``.result`` what the run had achieved.
            TrainingInterrupted: Ctrl-C (a KeyboardInterrupt).
            InsufficientResourcesError: there are fewer GPUs than asked for.
            TypeError: the function or its config cannot be sent to workers.
        """
        if self._has_loop:
            return super().fit()
        reloading = reload_session.current()
        if reloading is not None:
            return self._fit_reloading(reloading)
        return self._fit()

    def _fit_reloading(self, session: ReloadSession) -> Result:
        """Under ``lockstep run --reload``: continue the run that this call has begun before."""
        number, earlier = session.begin()
        if session.stopping is not None:
            session.stopped()
            raise TrainingPreempted(f"{session.stopping} has changed.")
        continued = copy.copy(self)
        if earlier is not None:
            # Where there is nothing to continue, the run was deleted by hand: start another.
            with suppress(FileNotFoundError):
                there = run_storage(earlier.uri, self.run_config.storage_filesystem)
                if earlier.finished:
                    session.finished(number)
                    return Result(there)
                continued._restored_from, continued._changed = there, True
        result = continued._fit(session, number)
        session.finished(number)
        return result

    def _fit(self, reloading: ReloadSession | None = None, number: int = 0) -> Result:
        self.setup()
        self.preprocess_datasets()
        in_process = self._engine.in_this_process
        display = make_display(self.run_config.verbose, interactive_function=in_process)
        callbacks = CallbackDispatcher(
            [*self.run_config.callbacks, CSVLoggerCallback(), JsonLoggerCallback()],
            lambda text: display.message(text, "warning"),
            settings.callback_flush_seconds(),
        )
        # Before the run is opened: a function that cannot be pickled leaves no directory behind.
        payload = self.payload(starts_now=self._restored_from is None or self._changed)
        # Found before the new run's directory exists, which would be the newest otherwise.
        notes = [*self._changed_code(), *self._passed_over()]
        run = self._open_run()
        if isinstance(run, Result):
            return run
        with closing(run):
            if run.restored:
                complete_tables(run.directory, RunRecords(run.storage))
            reload = None if reloading is None else Reloading(reloading, number, run)
            try:
                if self._fork is not None:
                    self._copy_fork(self._fork, run)
                plan = self.plan_run(payload, run)
            except KeyboardInterrupt:
                self._interrupted_early(run)
            for text in (*payload.warnings, *notes):
                display.message(text, "warning")
            if reloading is not None:
                # New code that fails is shown at once, and tried again when it is saved again.
                plan = replace(plan, run_config=_without_retries(plan.run_config))
                changed = reloading.opened(number, run.storage.uri)
                if changed is not None and run.restored:
                    newest = run.newest_checkpoint()
                    where = newest.name if newest else "the beginning: the run has no checkpoint"
                    where += ", from memory" if run.pending is not None else ""
                    display.message(f"{changed} has changed: the run continues from {where}.")
            state = drive(plan, run, callbacks, display, reload, lambda: self._keep(run))
            if state.phase is Phase.PREEMPTED and reloading is not None and reloading.stopping:
                reloading.stopped()
                raise TrainingPreempted(f"{reloading.stopping} has changed.", run.result())
            return self._conclude(run, state)

    def _keep(self, run: Run) -> None:
        """Keep the trainer with its run, for a restore."""
        # A restored run without changes has its trainer on storage already.
        if not self._restored_from or self._changed:
            try:
                save_trainer(self, run.storage)
            except KeyboardInterrupt:
                self._interrupted_early(run)

    def _interrupted_early(self, run: Run) -> NoReturn:
        run.end(Phase.INTERRUPTED.value)
        install_quiet_excepthook()
        text = f"Interrupted before the workers were started, in {run.storage.uri}."
        raise TrainingInterrupted(text) from None

    def _make_backend(self) -> Backend:
        if has_ray_backend(self.backend_config):
            from lockstep.train.ray_backend import RayBackend

            return RayBackend(self.backend_config)
        backend = self.backend_config.make_backend()
        check_backend(backend)
        return backend

    def payload(self, *, starts_now: bool = False) -> TrainerPayload:
        """Internal: what all runs of this trainer share. Tune makes it once for all trials.

        ``starts_now``: workers follow at once, and what they need begins to start meanwhile.

        Raises:
            InsufficientResourcesError, TypeError: see ``fit``.
        """
        engine = self._engine
        backend = self._make_backend()
        scaling = ScalingPolicy(*self.scaling_config.sizes)
        group = self._group_spec(engine, backend, scaling)
        warnings = list(engine.check(group))
        if starts_now:
            engine.prepare(group)
        setup: dict[str, Any] = {
            "function": dump_function(self.train_loop_per_worker, self.train_loop_config),
            "backend": dump(backend, "backend"),
            "metadata": dump(self.metadata, "metadata"),
            "faults": dump(self.fault_plan, "fault_plan") if self.fault_plan else b"",
            # Workers read unchanged files themselves; only texts that they would not find are sent.
            "sources": differing_sources(self.sources),
        }
        if len(setup["function"]) >= LARGE_CAPTURE:
            warnings += large_captures(self.train_loop_per_worker, self.train_loop_config)
        setup["datasets"], tables, streams = plan_datasets(
            preprocessed(self.preprocessor, self.datasets, self.dataset_config),
            self.dataset_config,
            scaling.largest,
            self.train_loop_per_worker,
            shared=engine.single_machine,
        )
        validation = self._validation_plan(engine, group)
        whole = backend.needs_all_announcements or group.gpus_per_worker % 1 > 0
        return TrainerPayload(
            engine, setup, scaling, group, warnings, whole, validation, tables, streams
        )

    def _validation_plan(self, engine: Engine, group: GroupSpec) -> ValidationPlan | None:
        config = self.validation_config
        if config is None:
            return None
        options = config.ray_remote_kwargs
        own = (options.get("runtime_env") or {}).get("env_vars") or {}
        spec = replace(
            group,
            size=1,
            entry=VALIDATION_ENTRY,
            environment={**group.environment, **own},
            cpus_per_worker=options.get("num_cpus"),
            gpus_per_worker=options.get("num_gpus") or 0,
            resources=options.get("resources") or {},
            label_selectors=(),
        )
        engine.check(spec)
        return ValidationPlan(
            engine,
            spec,
            dump_function(config.fn, {}),
            differing_sources(sources_of(config.fn)),
            config.task,
        )

    def plan_run(self, payload: TrainerPayload, run: Run, overrides: bytes = b"") -> RunPlan:
        """Internal: what a Controller needs to drive ``run``.

        Args:
            payload: this trainer's, or one of a trainer whose config has other values.
            run: open, and not driven yet.
            overrides: the values of this trainer's config that differ, a pickled dict.

        Raises:
            ValueError: ``run`` stopped inside an epoch of a dataset, and this is another dataset.
        """
        run.metadata = {name: value for name, value in self.metadata.items() if _is_json(value)}
        if self.preprocessor is not None:
            run.metadata[PREPROCESSOR_KEY] = self.preprocessor.serialize()
        newest = run.newest_checkpoint()
        check_positions(payload.setup["datasets"], newest.positions if newest else None)
        setup = WorkerSetup(
            **payload.setup,
            overrides=overrides,
            context=self._context(run),
            storage=run.storage,
            score_attribute=self.run_config.checkpoint_config.checkpoint_score_attribute,
            single_machine=payload.engine.single_machine,
            own_process=not payload.engine.in_this_process,
            guard=dump(guard, "guard") if (guard := self.run_config.guard) is not None else b"",
            validates=payload.validation is not None,
            use_gpu=self.scaling_config.use_gpu,
            working_dir=self.run_config.working_dir,
        )
        return RunPlan(
            engine=payload.engine,
            # Pickled once, for all ranks and all attempts.
            group=replace(payload.group, payload=pickle.dumps(setup, 5), title=run.title),
            scaling=payload.scaling,
            run_config=self.run_config,
            run_context=self._run_context(run),
            start_from=self.resume_from_checkpoint,
            validation=payload.validation,
            all_announcements=payload.all_announcements,
            streams=Streams(payload.streams),
        )

    @classmethod
    def restore(  # type: ignore[override]  # the arguments of this class are known
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
        *,
        train_loop_per_worker: Callable[..., Any] | None = None,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
    ) -> Self:
        """A trainer that resumes an earlier run, from its newest checkpoint, in its directory.

        This executes code that is kept in the directory: restore only what you trust.

        Args:
            path: the run's directory, or an experiment's (its newest run).
            storage_filesystem: a ``pyarrow.fs.FileSystem`` that ``path`` is a path on.
            train_loop_per_worker, train_loop_config, scaling_config: instead of the run's own,
                which are kept with it. So a script that was edited since runs its new code only if
                the function is given here; else ``fit`` says what differs.
            run_config: instead of the run's own, except for where it is. Callbacks that could not
                be kept have to be given again here.
            datasets: instead of the run's own of the same names. Those that hold much in memory
                are not kept with it and have to be given again here.

        A run that has finished gives its Result again, unless something new is given here.

        Raises:
            FileNotFoundError: there is no run, or nothing to restore it with.
            ValueError: a part of it could not be kept, or cannot be loaded here, and has to be
                given.
        """
        given = {
            "train_loop_per_worker": train_loop_per_worker,
            "train_loop_config": train_loop_config,
            "scaling_config": scaling_config,
            "run_config": run_config,
            "datasets": datasets,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        shown = redact(os.fspath(path))
        if callable(storage_filesystem):  # where it is the second argument in Ray
            raise TypeError(
                f"restore({shown!r}, {storage_filesystem!r}): a training function is "
                "given by name: train_loop_per_worker=…."
            )
        storage = run_storage(path, storage_filesystem)
        kept = {}
        if train_loop_per_worker is None or is_saved(storage):
            kept = saved_trainer(storage, changes)
            if "run_config" not in {**kept, **changes}:
                raise ValueError(
                    f"restore({shown!r}): the run's RunConfig(stop=…) could not be pickled; "
                    "give run_config to restore()."
                )
        sources = None if "train_loop_per_worker" in changes else saved_sources(storage)
        trainer = cls.__new__(cls)
        # Not cls(…): a subclass's __init__ may have other arguments, which are not kept.
        DataParallelTrainer.__init__(trainer, **{**changes, **kept})
        trainer._restored_from = storage
        trainer._changed = bool(changes)
        trainer._kept_sources = sources
        return trainer

    @classmethod
    def fork(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
        *,
        step: int | None = None,
        name: str | None = None,
        train_loop_config: Mapping[str, Any] | None = None,
        train_loop_per_worker: Callable[..., Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
    ) -> Self:
        """A trainer for a new run that starts from a checkpoint of an earlier one, its parent.

        ``fit`` copies the checkpoint into the new run, which counts on from there, and in the
        middle of an epoch continues there. The parent is not changed, and may be running.
        ``Result.parent`` of the new run is the parent. This executes code that is kept in the
        directory: fork only what you trust.

        Args:
            path: the parent's directory, or an experiment's (its newest run).
            storage_filesystem: a ``pyarrow.fs.FileSystem`` that ``path`` is a path on.
            step: the ``training_iteration`` of the checkpoint; by default the newest one.
            name: of the new run's experiment; by default it lies beside the parent.
            train_loop_config: values instead of, or beside, those of the parent's.
            train_loop_per_worker, scaling_config, datasets: as in ``restore``.
            run_config: instead of the parent's, with another place if it has one.

        Raises:
            FileNotFoundError: there is no run, or nothing to fork it with.
            ValueError: there is no checkpoint at this step; names those there are.
        """
        storage = run_storage(path, storage_filesystem)
        origin = choose_fork(storage, step)
        given = {
            "train_loop_per_worker": train_loop_per_worker,
            "scaling_config": scaling_config,
            "run_config": run_config,
            "datasets": datasets,
        }
        changes = {key: value for key, value in given.items() if value is not None}
        kept = saved_trainer(storage, changes)
        config = kept["train_loop_config"]
        if train_loop_config is not None:
            if not isinstance(train_loop_config, Mapping):
                raise TypeError(f"fork(train_loop_config={train_loop_config!r}): expected a dict.")
            config = config_like(config, {**config, **train_loop_config})
        if run_config is None:
            if "run_config" not in kept:
                raise ValueError(
                    f"fork({storage.uri!r}): the run's RunConfig(stop=…) could not be pickled; "
                    "give run_config to fork()."
                )
            # A fork is a new run: the newest of that name may be its own parent.
            placed = replace(origin.placed(kept["run_config"], name), resume="never")
        else:
            _checked(run_config, RunConfig, "run_config")
            if run_config.resume != "never":
                raise ValueError(
                    f"fork(run_config=RunConfig(resume={run_config.resume!r})): a fork is a new "
                    "run; leave resume out, and continue a fork with restore()."
                )
            placed = run_config if name is None else replace(run_config, name=name)
        trainer = cls.__new__(cls)
        arguments = {**kept, **changes, "train_loop_config": config, "run_config": placed}
        DataParallelTrainer.__init__(trainer, **arguments)
        trainer._fork = origin
        if train_loop_per_worker is None:
            trainer._kept_sources = saved_sources(storage)
        return trainer

    def as_trainable(self) -> DataParallelTrainer:
        """The trainer: ``Tuner`` and ``tune.run`` take it as it is. For scripts that have this."""
        return super().as_trainable() if self._has_loop else self

    @property
    def config_arguments(self) -> frozenset[str]:
        """Internal: arguments of the constructor that are keys of ``train_loop_config``."""
        return frozenset()

    @property
    def trainer_name(self) -> str:
        """Internal: what runs and errors call this trainer."""
        return type(self).__name__ if self._fork is None else self._fork.trainer_name

    def with_changes(self, **changes: Any) -> Self:
        """A copy with other values of these attributes, such as ``run_config``: a run of its own.

        Raises:
            TypeError: there is no such attribute.
        """
        # Shallow: Tune makes one for each trial, and datasets may be large.
        copied = copy.copy(self)
        own = {"_restored_from": None, "_changed": False, "_fork": None}
        for name, value in {**changes, **own}.items():
            if name not in vars(self):
                raise TypeError(f"{type(self).__name__}.with_changes({name}=…): no such attribute.")
            setattr(copied, name, value)
        return copied

    def _group_spec(self, engine: Engine, backend: Backend, scaling: ScalingPolicy) -> GroupSpec:
        spec = GroupSpec(
            size=scaling.largest,
            entry=WORKER_ENTRY,
            payload=b"",
            preload=(
                "lockstep.train.worker.main",
                "cloudpickle",  # a function that comes by value needs it
                *backend.preload,
                *(PRELOADED if self.datasets else ()),
            ),
            preload_later=backend.preload_later,
            environment={
                **settings.tracker_environment(),
                **settings.ray_names_environment(),
                **backend.environment(),
                **runtime.current().env_vars,
                **((self.run_config.worker_runtime_env or {}).get("env_vars") or {}),
            },
            cpus_per_worker=self.scaling_config.num_cpus_per_worker,
            gpus_per_worker=self.scaling_config.num_gpus_per_worker,
            resources=self._other_resources(),
            placement_strategy=self.scaling_config.placement_strategy,
            label_selectors=self.scaling_config.label_selectors,
        )
        if self._takes_every_gpu:
            spec = without_unasked_gpus(spec, self.scaling_config)
        room = engine.capacity(spec) if scaling.elastic else scaling.largest
        # Never None for a fixed size: engine.check() reports what does not fit.
        size = scaling.size_for(room)
        if size is None:
            raise InsufficientResourcesError(
                f"ScalingConfig(num_workers={self.scaling_config.num_workers}): there is room for "
                f"{room} worker(s) now; lower the minimum."
            )
        return replace(spec, size=size)

    def _other_resources(self) -> dict[str, float]:
        resources: dict[str, float] = self.scaling_config.other_resources
        if self.scaling_config.accelerator_type:
            # As Ray does: enough to be placed there, and for many workers.
            resources[f"{ACCELERATOR}{self.scaling_config.accelerator_type}"] = 0.001
        return resources

    def _open_run(self) -> Run | Result:
        """The run to drive, new or resumed; the Result of a run that has nothing left to do."""
        config = {"train_loop_config": describable(self.train_loop_config)}
        earlier = self._restored_from or self._run_to_resume()
        if earlier is None:
            parent = None if self._fork is None else self._fork.record
            run = Run.create(self.trainer_name, self.run_config, config, parent=parent)
        elif self._restored_from and not self._changed and RunRecords(earlier).state == "finished":
            return Result(earlier)
        else:
            run = Run.reopen(earlier, self.run_config, config)
        return run

    def _copy_fork(self, fork: Fork, run: Run) -> None:
        try:
            fork.copy_into(run)
        except LockstepError:
            run.end(Phase.FAILED.value)
            raise

    def _passed_over(self) -> Iterator[str]:
        """Tells of an unfinished run of the same name that could be resumed and will not be."""
        name = self.run_config.name
        if (
            self._fork is not None
            or self._restored_from is not None
            or self.run_config.resume != "never"
            or name is None
        ):
            return
        with suppress(FileNotFoundError, LockstepError):  # what is wrong there is not this run's
            experiment = experiment_storage(self.run_config, name)
            # By its name: there may be hundreds, and reading all of their journals takes long.
            newest = map(experiment.child, newest_directories(experiment.listdir()))
            started = {at: run for run in newest if (at := start_time(run)) is not None}
            if not started:
                return
            run = started[max(started)]
            if run.is_local and is_locked(run.path(JOURNAL_FILE)):
                return  # its driver is at work
            records = RunRecords(run)
            if records.state != "finished" and records.checkpoints and "trial" not in records.run:
                yield (
                    f"An earlier run of the name {name!r} has not finished ({records.state}, "
                    f"{plural(len(records.checkpoints), 'checkpoint')}); this is a new run beside "
                    f"it. To resume the earlier one: {self._restore_call(run)}, or "
                    f"RunConfig(name={name!r}, resume='auto')."
                )

    def _run_to_resume(self) -> Storage | None:
        if self.run_config.resume == "never" or self.run_config.name is None:
            return None
        experiment = experiment_storage(self.run_config, self.run_config.name)
        try:
            newest = newest_run(experiment)
        except FileNotFoundError:
            newest = None
        if newest is not None and RunRecords(newest).state != "finished":
            return newest
        if self.run_config.resume == "must":
            found = "no run" if newest is None else "only runs that have finished"
            raise FileNotFoundError(
                f"RunConfig(name={self.run_config.name!r}, resume='must'): there is {found} in "
                f"{experiment.uri}; use resume='auto' to start one."
            )
        return None

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
            storage=run.storage,
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

    def _restore_call(self, storage: Storage) -> str:
        """The call that resumes a run with the training function as the script has it then."""
        where = repr(storage.uri)
        if not isinstance(self.train_loop_per_worker, TrainingLoop):
            where += f", train_loop_per_worker={name_of(self.train_loop_per_worker) or '…'}"
        return f"{self.trainer_name}.restore({where}).fit()"

    def _changed_code(self) -> Iterator[str]:
        """Warns that the function's file was edited since the run was started."""
        if self._kept_sources is None:
            return
        if self._fork is not None:
            name = name_of(self.train_loop_per_worker) or "…"
            call = (
                f"{self.trainer_name}.fork({self._fork.parent.uri!r}, train_loop_per_worker={name})"
            )
        elif self._restored_from is not None:
            call = self._restore_call(self._restored_from)
        else:
            return
        note = changed_note(self._kept_sources, self.train_loop_per_worker, call)
        if note is not None:
            yield note

    def _conclude(self, run: Run, state: RunState) -> Result:
        result = run.result()
        if state.phase is Phase.FAILED:
            if self.run_config.failure_config.fail_fast == "raise" and result.error is not None:
                raise result.error
            text = failure_text(run, state)
            if run.checkpoints:
                text += f"\nTo resume it with corrected code: {self._restore_call(run.storage)}"
            kind = _failure_kind(result.error)
            raise kind(text, result.worker_failures, result) from result.error
        if state.phase is Phase.INTERRUPTED:
            install_quiet_excepthook()
            text = resume_advice("Interrupted", run, self._restore_call(run.storage))
            raise TrainingInterrupted(text, result)
        if state.phase is Phase.PREEMPTED:
            text = resume_advice("Preempted", run, self._restore_call(run.storage))
            print(text, file=sys.stderr)
            raise TrainingPreempted(text, result)
        return result


class _LoopTrainer(DataParallelTrainer):
    """Runs the ``training_loop`` of another trainer, in one worker."""

    @classmethod
    def of(cls, trainer: BaseTrainer) -> _LoopTrainer:
        """The trainer that runs this one's loop. Its config is the subclass's own arguments."""
        own = {k: v for k, v in trainer._arguments.items() if k not in SHARED_ARGUMENTS}
        shared: dict[str, Any] = {name: getattr(trainer, name) for name in SHARED_ARGUMENTS}
        shared["run_config"] = worker_run_config(trainer.run_config)
        # The loop's one worker has no part of a stream: the rows are read here.
        shared["datasets"] = {
            name: given() if isinstance(given, RayDataset) else given
            for name, given in trainer.datasets.items()
        }
        loop = TrainingLoop(type(trainer), shared, frozenset(trainer._arguments))
        made = cls(
            loop,
            train_loop_config=own,
            scaling_config=one_worker(trainer.scaling_config),
            run_config=trainer.run_config,
            metadata=trainer.metadata,
            resume_from_checkpoint=trainer.resume_from_checkpoint,
        )
        made._restored_from, made._changed = trainer._restored_from, trainer._changed
        return made

    @property
    def config_arguments(self) -> frozenset[str]:
        accepted = inspect.signature(self._loop.trainer_class.__init__).parameters
        return frozenset((*accepted, *SHARED_ARGUMENTS, *self.train_loop_config)) - {
            "self",
            "run_config",
        }

    @property
    def trainer_name(self) -> str:
        return str(self._loop.trainer_class.__name__)

    @property
    def _loop(self) -> TrainingLoop:
        assert isinstance(self.train_loop_per_worker, TrainingLoop)
        return self.train_loop_per_worker


def _failure_kind(error: BaseException | None) -> type[WorkerGroupError]:
    """What ``fit`` raises for a run that this error has ended."""
    if isinstance(error, HangError):
        return NCCLHangError
    if isinstance(error, PreemptedError):
        return PreemptionError
    of_driver = (EngineError, InsufficientResourcesError, StopConditionError, StorageError)
    return ControllerError if isinstance(error, of_driver) else WorkerGroupError


def _without_retries(config: RunConfig) -> RunConfig:
    return replace(config, failure_config=replace(config.failure_config, max_failures=0))


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _checked(value: Any, kind: type, name: str) -> Any:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"{name}={value!r}: expected a {kind.__name__}.")
    return value
