"""The configs that users create. They are checked when created: every config object is valid."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lockstep.checks import check_field_int, is_number
from lockstep.redact import redact
from lockstep.runtime import checked_env_vars

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = [
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointUploadMode",
    "FailureConfig",
    "Guard",
    "LoggingConfig",
    "RunConfig",
    "ScalingConfig",
    "SyncConfig",
    "seconds_of",
]

StopCondition = Mapping[str, float] | Callable[[str, dict[str, Any]], bool]


class CheckpointUploadMode(Enum):
    """When ``report()`` returns, relative to the upload of its checkpoint."""

    SYNC = "sync"
    """After the checkpoint is on storage, flushed and committed."""
    ASYNC = "async"
    """Once a snapshot is safe; the upload continues in the background, in order."""
    NO_UPLOAD = "no_upload"
    """The checkpoint is stored already; it is recorded where it is."""

    def default_delete_local_checkpoint_after_upload(self) -> bool:
        """False: a checkpoint's own directory is deleted only where that is wanted."""
        return False

    @classmethod
    def _missing_(cls, value: object) -> CheckpointUploadMode | None:
        return next((m for m in cls if isinstance(value, str) and m.name == value.upper()), None)


def _flat_bounds(stop: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """The bounds of a stop condition by their ``a/b`` names."""
    for key, bound in stop.items():
        if not isinstance(key, str):
            raise TypeError(f"RunConfig(stop={{{key!r}: …}}): expected the name of a metric.")
        if isinstance(bound, Mapping):
            yield from _flat_bounds(bound, f"{above}{key}/")
        elif isinstance(bound, bool) or (is_number(bound) and not math.isnan(bound)):
            yield above + key, bound
        else:
            raise ValueError(f"RunConfig(stop={{{above + key!r}: {bound!r}}}): expected a number.")


class CheckpointConsistencyMode(Enum):
    """What ``get_all_reported_checkpoints()`` waits for."""

    COMMITTED = "COMMITTED"
    """Every checkpoint that was reported is on storage and committed."""
    VALIDATED = "VALIDATED"
    """The same, and their validations have ended: see ``ValidationConfig``."""


def _invalid(config: object, name: str, text: str, kind: type[Exception] = ValueError) -> Exception:
    """The error for an argument: the value that was given, then ``text``."""
    value = redact(repr(getattr(config, name)))
    return kind(f"{type(config).__name__}({name}={value}): {text}")


def _check_choice(config: object, name: str, *choices: object) -> None:
    if getattr(config, name) not in choices:
        expected = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        raise _invalid(config, name, f"expected {expected}.")


def _check_int(config: object, name: str, least: int, why: str) -> None:
    check_field_int(type(config).__name__, name, getattr(config, name), least, why)


class _Changeable:
    """A config whose fields can be set before it is used. Each change is checked like a new one."""

    def __setattr__(self, name: str, value: Any) -> None:
        known: dict[str, Any] = type(self).__dataclass_fields__  # type: ignore[attr-defined]  # of dataclasses
        if name not in known:
            text = f"{type(self).__name__} has no field {name!r}; it has {', '.join(known)}."
            raise AttributeError(text)
        if name not in vars(self):  # __init__ sets it
            object.__setattr__(self, name, value)
            return
        changed: Any = replace(self, **{name: value})  # type: ignore[type-var]  # as above
        for each in fields(changed):
            object.__setattr__(self, each.name, getattr(changed, each.name))


PLACEMENT_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def _is_searched(value: object) -> bool:
    grid = isinstance(value, Mapping) and set(value) == {"grid_search"}
    return grid or hasattr(value, "sample")


@dataclass(unsafe_hash=True)
class ScalingConfig(_Changeable):
    """How many workers, and what each one gets.

    Args:
        num_workers: worker processes. 0 runs the training function in this process, so that
            ``breakpoint()`` works; everything else stays the same. ``(min, max)`` starts as many
            as fit, continues with fewer after a loss that cannot be replaced, and grows again
            when there is room.
        use_gpu: give each worker a GPU of its own.
        resources_per_worker: e.g. ``{"CPU": 2, "GPU": 1}``. ``GPU`` needs ``use_gpu=True``; ``CPU``
            sets the worker's thread count. ``{"GPU": 0.5}`` puts two workers on each GPU; how much
            of its memory each takes is up to them. On a Ray cluster also the cluster's own
            resources, such as ``{"fast_disk": 1}``.
        placement_strategy: on a Ray cluster, how workers are spread over nodes: ``"PACK"``,
            ``"SPREAD"``, ``"STRICT_PACK"`` or ``"STRICT_SPREAD"``.
        accelerator_type: on a Ray cluster, the type of GPU that nodes must have, such as
            ``"A100"``.
        label_selector: on a Ray cluster, the labels that nodes must have: a dict for all workers,
            or a list of dicts, one for each. On one machine these three do nothing, with a warning.
        trainer_resources, _max_cpu_fraction_per_node, use_tpu, topology,
            elastic_resize_monitor_interval_s: accepted for scripts that have them. They do
            nothing, with a warning: the trainer is this process, there are no TPUs, and elastic
            runs see at once that there is more room.
    """

    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    trainer_resources: InitVar[Any] = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None
    _max_cpu_fraction_per_node: InitVar[Any] = None
    label_selector: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None
    use_tpu: InitVar[Any] = None
    topology: InitVar[Any] = None
    elastic_resize_monitor_interval_s: InitVar[Any] = None

    def __post_init__(
        self,
        trainer_resources: Any,
        cpu_fraction: Any,
        use_tpu: Any,
        topology: Any,
        interval_s: Any,
    ) -> None:
        for name, value, nothing, why in (
            ("trainer_resources", trainer_resources, {"CPU": 0}, "the trainer is this process"),
            ("_max_cpu_fraction_per_node", cpu_fraction, 1.0, "workers read their data themselves"),
            ("use_tpu", use_tpu, False, "lockstep trains on CPUs and GPUs"),
            ("topology", topology, "", "lockstep trains on CPUs and GPUs"),
            ("elastic_resize_monitor_interval_s", interval_s, 60.0, "a change is noticed at once"),
        ):
            if value not in (None, nothing):
                text = f"ScalingConfig({name}={value!r}) does nothing: {why}."
                warnings.warn(text, UserWarning, stacklevel=3)
        if self.is_searched:
            return
        if isinstance(self.num_workers, tuple):
            if len(self.num_workers) != 2:
                raise _invalid(self, "num_workers", "expected (min, max).")
            for size in self.num_workers:
                why = f" (min, max) was given as {self.num_workers!r}."
                check_field_int("ScalingConfig", "num_workers", size, 1, why)
            if self.num_workers[0] > self.num_workers[1]:
                raise _invalid(self, "num_workers", "min is above max.")
        else:
            why = " (min, max), a tuple, is for a size that may change."
            _check_int(self, "num_workers", 0, why)
        if not isinstance(self.use_gpu, bool):
            raise _invalid(self, "use_gpu", "expected True or False.", TypeError)
        self._check_placement()
        if self.resources_per_worker is None:
            return
        if not isinstance(self.resources_per_worker, Mapping):
            text = "expected a dict, such as {'CPU': 2}."
            raise _invalid(self, "resources_per_worker", text, TypeError)
        for name, amount in self.resources_per_worker.items():
            if not isinstance(name, str):
                text = f"the name {name!r} is no string."
                raise _invalid(self, "resources_per_worker", text, TypeError)
            if not is_number(amount) or not 0 <= amount < math.inf:
                raise ValueError(
                    f"ScalingConfig(resources_per_worker={{{name!r}: {amount!r}}}): "
                    "expected a finite number, 0 or more."
                )
        gpus = self.resources_per_worker.get("GPU", 0)
        if gpus and not self.use_gpu:
            raise ValueError(
                f"ScalingConfig(resources_per_worker={{'GPU': {gpus}}}) needs use_gpu=True."
            )
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(
                f"ScalingConfig(resources_per_worker={{'GPU': {gpus}}}): "
                "expected an integer, or a part of one GPU."
            )

    def _check_placement(self) -> None:
        if self.placement_strategy is None:  # Ray takes it, too
            object.__setattr__(self, "placement_strategy", "PACK")
        if self.placement_strategy not in PLACEMENT_STRATEGIES:
            text = f"choose one of {', '.join(PLACEMENT_STRATEGIES)}."
            raise _invalid(self, "placement_strategy", text)
        if self.accelerator_type is not None and not isinstance(self.accelerator_type, str):
            text = "expected a name, such as 'A100'."
            raise _invalid(self, "accelerator_type", text, TypeError)
        for one in self.label_selectors:
            strings = isinstance(one, Mapping) and [*one, *one.values()]
            if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
                text = "expected a dict of labels, such as {'zone': 'a'}, or a list of dicts."
                raise _invalid(self, "label_selector", text, TypeError)
        if len(self.label_selectors) > 1 and self.sizes != (len(self.label_selectors),) * 2:
            text = "a list has one dict for each worker, and num_workers is fixed then."
            raise _invalid(self, "label_selector", text)

    @property
    def label_selectors(self) -> tuple[Mapping[str, str], ...]:
        """The labels of nodes: none, one mapping for all workers, or one for each."""
        chosen = self.label_selector
        if not chosen:
            return ()
        return (chosen,) if isinstance(chosen, Mapping) else tuple(chosen)

    @property
    def other_resources(self) -> dict[str, float]:
        """What each worker gets besides CPUs and GPUs."""
        own = self.resources_per_worker or {}
        return {name: own[name] for name in own if name not in ("CPU", "GPU")}

    @property
    def is_searched(self) -> bool:
        """Whether a value is a search space, such as ``tune.choice(…)`` in a ``param_space``."""
        resources = self.resources_per_worker
        values: list[Any] = [self.num_workers, self.use_gpu, resources]
        if isinstance(resources, Mapping):
            values += resources.values()
        return any(map(_is_searched, values))

    @property
    def num_cpus_per_worker(self) -> float | None:
        """The CPUs requested for each worker; None if the user did not request any."""
        return (self.resources_per_worker or {}).get("CPU")

    @property
    def num_gpus_per_worker(self) -> float:
        """How many GPUs each worker gets: by default one with ``use_gpu=True``, else none."""
        if not self.use_gpu:
            return 0
        return (self.resources_per_worker or {}).get("GPU", 1)

    @property
    def additional_resources_per_worker(self) -> dict[str, float]:
        """Ray's name of ``other_resources``."""
        return self.other_resources

    @property
    def total_resources(self) -> dict[str, float]:
        """What all workers get together; a worker without its own CPUs or GPUs counts one CPU."""
        each = dict(self.resources_per_worker or {})
        if self.num_gpus_per_worker:
            each["GPU"] = self.num_gpus_per_worker
        return {name: n * self.sizes[1] for name, n in (each or {"CPU": 1.0}).items()}

    @property
    def elasticity_enabled(self) -> bool:
        """Whether the number of workers may change."""
        return self.min_workers != self.max_workers

    @property
    def min_workers(self) -> int:
        """The smallest number of workers."""
        return self.sizes[0]

    @property
    def max_workers(self) -> int:
        """The largest number of workers."""
        return self.sizes[1]

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest number of workers; ``num_workers=0`` counts as one."""
        if self.is_searched:
            raise TypeError(
                f"{self!r} contains a search space; give it to "
                "Tuner(param_space={'scaling_config': …})."
            )
        if isinstance(self.num_workers, tuple):
            return self.num_workers
        size = max(self.num_workers, 1)
        return (size, size)


@dataclass(unsafe_hash=True)
class FailureConfig(_Changeable):
    """What to do when workers fail.

    Args:
        max_failures: how often a failed run is started again from its newest checkpoint.
            0 never, -1 without limit.
        fail_fast: True ends at the first failure (``max_failures`` must be 0); ``"raise"`` then
            raises the worker's own exception instead of a TrainingFailedError.
        max_preemption_failures: the same as ``max_failures`` for workers that were preempted
            (they got a SIGTERM), counted separately.
        controller_failure_limit, preemption_grace_s, relax_collectives_on_preemption: accepted for
            scripts that have them. They do nothing, with a warning: the controller is this process,
            and how long workers have after a SIGTERM is the setting
            ``LOCKSTEP_PREEMPTION_GRACE_S``.
    """

    max_failures: int = 0
    fail_fast: bool | Literal["raise"] = False
    max_preemption_failures: int = -1
    controller_failure_limit: InitVar[Any] = None
    preemption_grace_s: InitVar[Any] = None
    relax_collectives_on_preemption: InitVar[Any] = None

    def __post_init__(
        self,
        controller_failure_limit: Any,
        preemption_grace_s: Any,
        relax_collectives_on_preemption: Any,
    ) -> None:
        for name, value, nothing, why in (
            (
                "controller_failure_limit",
                controller_failure_limit,
                -1,
                "the controller is this process; RunConfig(name=…, resume='auto') resumes its runs",
            ),
            (
                "preemption_grace_s",
                preemption_grace_s,
                None,
                "set the environment variable LOCKSTEP_PREEMPTION_GRACE_S",
            ),
            (
                "relax_collectives_on_preemption",
                relax_collectives_on_preemption,
                False,
                "all ranks stop at the same report",
            ),
        ):
            if value not in (None, nothing):
                text = f"FailureConfig({name}={value!r}) does nothing: {why}."
                warnings.warn(text, UserWarning, stacklevel=3)
        for name in ("max_failures", "max_preemption_failures"):
            _check_int(self, name, -1, " -1 means without limit.")
        _check_choice(self, "fail_fast", True, False, "raise")
        if self.fail_fast and self.max_failures:
            raise ValueError(
                f"FailureConfig(fail_fast={self.fail_fast!r}, max_failures={self.max_failures}): "
                "fail_fast allows no retries; leave max_failures at 0."
            )


_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]+?)s?\s*")


def seconds_of(text: str) -> float:
    """``"30s"``, ``"5min"`` or ``"1.5h"`` in seconds.

    Raises:
        ValueError: it is not a time above 0.
    """
    match = _TIME.fullmatch(text.lower()) or re.fullmatch(r"\s*([\d.]+)\s*(s)\s*", text.lower())
    unit = _UNITS.get(match[2]) if match else None
    seconds = float(match[1]) * unit if match and unit else 0.0
    if not seconds > 0:
        raise ValueError(f"{text!r} is not a time; expected one such as '30s', '5min' or '1h'.")
    return seconds


@dataclass(unsafe_hash=True)
class CheckpointConfig(_Changeable):
    """Which checkpoints are kept, and how often a ``train.State`` becomes one.

    Args:
        num_to_keep: keep this many, the best by score (without a score: the newest). The newest is
            always kept as well. None keeps all; 0 keeps none after the run has ended.
        checkpoint_score_attribute: the score: a key of a dict checkpoint, or else of the reported
            metrics; ``"a/b"`` reaches into nested dicts.
        checkpoint_score_order: ``"max"`` or ``"min"``: which score is best.
        checkpoint_frequency: after how many steps a ``tune.Trainable`` class saves; 0: never. A
            training function decides itself when it reports a checkpoint.
        checkpoint_at_end: a ``tune.Trainable`` class saves when its trial ends.
        every: which calls of ``report(checkpoint=state)`` save the ``train.State``, the same on all
            ranks. None: each of them. A number ``n``: each n-th. A time such as ``"5min"``: the
            first one after that time. ``"auto"``: as often as is worth it, from the measured cost
            of a save and the time between failures. The last state of a run that ends, is stopped
            or is preempted is always saved. Set ``num_to_keep`` as well.
        max_overhead: of ``every="auto"``: the share of the time that saves may take at most.
        peer_copies: with ``engine="ray"``: how many other nodes keep a copy of a node's part of a
            ``train.State`` in memory until it is on storage, 1 or 0. With 1, a run that loses a
            node restarts from the copy.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["max", "min"] = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None
    every: int | str | None = None
    max_overhead: float = 0.02
    peer_copies: int = 1

    def __post_init__(self) -> None:
        self._check_every()
        if self.peer_copies not in (0, 1) or isinstance(self.peer_copies, bool):
            raise _invalid(self, "peer_copies", "expected 0 or 1.")
        if self.checkpoint_frequency is None:
            object.__setattr__(self, "checkpoint_frequency", 0)
        _check_int(self, "checkpoint_frequency", 0, " 0: never.")
        if self.checkpoint_at_end not in (None, True, False):
            raise _invalid(self, "checkpoint_at_end", "expected True or False.", TypeError)
        if self.num_to_keep is not None:
            _check_int(self, "num_to_keep", 0, " None keeps them all.")
        _check_choice(self, "checkpoint_score_order", "max", "min")
        attribute = self.checkpoint_score_attribute
        if attribute is not None and (not isinstance(attribute, str) or not attribute):
            raise _invalid(self, "checkpoint_score_attribute", "expected the name of a metric.")

    def _check_every(self) -> None:
        if isinstance(self.every, str):
            if self.every != "auto":
                try:
                    seconds_of(self.every)
                except ValueError:
                    text = "expected 'auto', a number of reports, or a time such as '5min'."
                    raise _invalid(self, "every", text) from None
        elif self.every is not None:
            _check_int(self, "every", 1, " None saves at every report that has a state.")
        if not is_number(self.max_overhead) or not 0 < self.max_overhead <= 1:
            raise _invalid(self, "max_overhead", "expected a share, above 0 and at most 1.")


@dataclass(frozen=True)
class LoggingConfig:
    """How much Ray's own loggers write. Has no effect: see ``RunConfig(verbose=…)``."""

    log_level: str = "INFO"

    def __post_init__(self) -> None:
        levels = ("CRITICAL", "FATAL", "ERROR", "WARN", "WARNING", "INFO", "DEBUG", "NOTSET")
        if not isinstance(self.log_level, str) or self.log_level.upper() not in levels:
            raise _invalid(self, "log_level", f"expected one of {', '.join(levels)}.")
        object.__setattr__(self, "log_level", self.log_level.upper())


@dataclass(frozen=True)
class SyncConfig:
    """When to copy files to remote storage. Has no effect: they always are, see ``RunConfig``."""

    sync_period: float = 300
    sync_timeout: float = 1800
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True
    upload_dir: str | None = None
    """The older name of ``RunConfig(storage_path=…)``."""
    syncer: Any = "auto"


@dataclass(frozen=True)
class Guard:
    """What to look for in each report of each rank, and what to do about it.

    Args:
        nan: NaN or infinity in a reported metric, and, of torch, in the gradients of every
            optimizer step: they are summed up on their device, and read at the next report. Every
            ``agree_every`` reports also in the parameters. The first such layer is named, of
            models that ``prepare_model()`` has returned or that a ``train.State`` holds.
        spike: ``metric`` is above its usual value by more than this many times its usual spread
            (the median and the median absolute deviation of the last 50 reports, of which there
            must be 20). None: do not look.
        agree_every: every this many reports, compare the parameters of all ranks, bit by bit, with
            rank 0's. Of models that ``prepare_model()`` has wrapped for data parallelism. None:
            never.
        metric: the metric that may have a spike; ``a/b`` for a nested one.
        action: ``"warn"`` shows it once for each kind, and the journal keeps all of them
            (``Result.guard``); ``"stop"`` runs the step again, from the newest checkpoint if there
            is one, says whether it comes again, and ends the run with a ``GuardError``, before the
            report and its checkpoint count; ``"skip"`` leaves out an optimizer step whose gradients
            are not finite, and warns of everything else; ``"rollback"`` starts the next attempt
            from the newest checkpoint, as often as ``FailureConfig(max_failures=…)`` allows, which
            also says whether it comes again.
        on_rollback: with ``"rollback"``: called on every rank with the ``train_loop_config``
            before the function is, once for each rollback so far; changes it, or returns another:
            ``lambda config: {**config, "lr": config["lr"] / 10}``.
    """

    nan: bool = True
    spike: float | None = 6.0
    agree_every: int | None = 100
    metric: str = "loss"
    action: Literal["warn", "stop", "skip", "rollback"] = "warn"
    on_rollback: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.nan, bool):
            raise _invalid(self, "nan", "expected True or False.", TypeError)
        if self.spike is not None and not (is_number(self.spike) and 0 < self.spike < math.inf):
            raise _invalid(self, "spike", "expected a number above 0, or None.")
        if self.agree_every is not None:
            _check_int(self, "agree_every", 1, " None means never.")
        if not isinstance(self.metric, str) or not self.metric:
            raise _invalid(self, "metric", "expected the name of a metric.", TypeError)
        _check_choice(self, "action", "warn", "stop", "skip", "rollback")
        if self.on_rollback is not None and not callable(self.on_rollback):
            raise _invalid(self, "on_rollback", "expected a function of the config.", TypeError)
        if self.on_rollback is not None and self.action != "rollback":
            raise _invalid(self, "on_rollback", f"action={self.action!r} never rolls back.")


@dataclass(unsafe_hash=True)
class RunConfig(_Changeable):
    """Where a run is stored and how it behaves.

    Args:
        name: the experiment directory inside ``storage_path``; by default the trainer's name and
            the time. With a name that was used before, another run is stored beside the first.
        storage_path: a directory or a URI such as ``s3://bucket/prefix``; by default
            ``LOCKSTEP_STORAGE`` or ``~/lockstep_results``.
        storage_filesystem: the ``pyarrow.fs.FileSystem`` of ``storage_path``.
        failure_config, checkpoint_config: see these classes.
        callbacks: ``tune.Callback``, ``LoggerCallback`` and ``train.UserCallback`` objects, mixed.
        stop: end the run at a report: ``{"training_iteration": 10, "accuracy": 0.9}`` (when one of
            the values is reached; dicts may be nested), or ``stop(trial_id, result) -> bool``.
        verbose: 0 prints only warnings, 1 the live display, 2 (or 3) every report as well.
        resume: what to do when ``name`` was used before: ``"never"`` makes another run beside the
            earlier ones, ``"auto"`` resumes the newest of them if it has not finished,
            ``"must"`` fails if there is none to resume.
        guard: a ``Guard``, which looks for NaN, spikes and ranks that do not agree.
        hang_warning_s: after this long without progress, print which ranks are missing and their
            stacks. Progress is a report, a row of ``train.log()``, or a rank that returns. Where no
            rank waits for another, the warning comes later if reports took that long before, and
            before the first report ten times later unless there is a ``hang_timeout_s``. None:
            never.
        hang_timeout_s: after this long without progress, whoever waits, the attempt fails. It
            counts from when all workers are up. None: never.
        storage_timeout_s: how long the upload of a checkpoint, or of a run's last files, may take;
            then it is an error. None: any time, as the files may be large.
        working_dir: None leaves workers in the driver's directory; ``"run"`` changes into the run
            directory, ``"rank"`` into a folder of each rank's own below it.
        worker_runtime_env: ``{"env_vars": {"NAME": "value"}}`` for the workers of this run alone,
            in addition to those of ``lockstep.init(runtime_env=…)``. The run keeps their names, not
            their values: a restore takes these from its own environment.
        local_dir: the older name of ``storage_path``.
        log_to_file, progress_reporter, sync_config, logging_config: accepted for scripts that have
            them. What workers print is always kept, in ``logs/``; the other three do nothing, with
            a warning.
    """

    name: str | None = None
    storage_path: str | Path | None = None
    storage_filesystem: pyarrow.fs.FileSystem | None = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    callbacks: Sequence[Any] = ()
    stop: StopCondition | None = None
    verbose: Literal[0, 1, 2, 3] = 1
    working_dir: Literal["run", "rank"] | None = None
    resume: Literal["never", "auto", "must"] = "never"
    hang_warning_s: float | None = 30.0
    hang_timeout_s: float | None = None
    storage_timeout_s: float | None = None
    guard: Guard | None = None
    worker_runtime_env: Mapping[str, Any] | None = None
    local_dir: str | Path | None = None
    log_to_file: Any = False
    progress_reporter: Any = None
    sync_config: Any = None
    logging_config: Any = None

    def __post_init__(self) -> None:
        self._convert_older_arguments()
        for name, default in (
            ("failure_config", FailureConfig),
            ("checkpoint_config", CheckpointConfig),
        ):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, default())
            elif not isinstance(value, default):
                raise _invalid(self, name, f"expected a {default.__name__}.", TypeError)
        if self.guard is not None and not isinstance(self.guard, Guard):
            raise _invalid(self, "guard", "expected a Guard, such as Guard(spike=6).", TypeError)
        if self.callbacks is None:
            object.__setattr__(self, "callbacks", ())
        if isinstance(self.callbacks, (str, bytes)) or not isinstance(self.callbacks, Sequence):
            raise _invalid(self, "callbacks", "expected a list.", TypeError)
        if self.name is not None and (
            not isinstance(self.name, str)
            or not self.name.strip()
            or self.name in (".", "..")
            or any(character in self.name for character in "/\\\0")
        ):
            raise _invalid(self, "name", "expected a directory name.")
        if self.storage_path is not None and not isinstance(self.storage_path, (str, Path)):
            raise _invalid(self, "storage_path", "expected a path.", TypeError)
        if self.storage_path == "":
            text = "expected a path; '.' is the current directory, None the default place."
            raise _invalid(self, "storage_path", text)
        if self.storage_filesystem is not None and self.storage_path is None:
            raise ValueError("RunConfig(storage_filesystem=…) needs storage_path, a path on it.")
        _check_choice(self, "verbose", 0, 1, 2, 3)
        _check_choice(self, "working_dir", None, "run", "rank")
        _check_choice(self, "resume", "never", "auto", "must")
        if self.worker_runtime_env is not None:
            checked_env_vars(self.worker_runtime_env, "RunConfig(worker_runtime_env=")
        if self.resume != "never" and self.name is None:
            raise ValueError(f"RunConfig(resume={self.resume!r}) needs the name of the run.")
        for name in ("hang_warning_s", "hang_timeout_s", "storage_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and not (is_number(seconds) and 0 < seconds < math.inf):
                text = "expected seconds, finite and above 0, or None for never."
                raise _invalid(self, name, text)
        self._check_stop()

    def __repr__(self) -> str:
        """Without the values of variables and the keys in ``storage_path``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.worker_runtime_env is not None:
            names = self.worker_runtime_env.get("env_vars") or {}
            values["worker_runtime_env"] = {"env_vars": dict.fromkeys(names, "…")}
        shown = (f"{name}={redact(repr(value))}" for name, value in values.items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def _convert_older_arguments(self) -> None:
        # object.__setattr__, here and above: the dataclass is frozen.
        if self.verbose == 3:
            object.__setattr__(self, "verbose", 2)
        upload_dir = getattr(self.sync_config, "upload_dir", None)
        if upload_dir is not None:
            if self.storage_path is not None:
                raise ValueError(
                    f"SyncConfig(upload_dir={redact(str(upload_dir))!r}) is the older name of "
                    "storage_path; give one."
                )
            object.__setattr__(self, "storage_path", upload_dir)
            # Beside an upload_dir, local_dir was where files waited for their upload.
            object.__setattr__(self, "local_dir", None)
            object.__setattr__(self, "sync_config", None)
        if self.local_dir is not None:
            if self.storage_path is not None:
                raise ValueError(
                    f"RunConfig(local_dir={redact(str(self.local_dir))!r}) is the older name of "
                    "storage_path; give one."
                )
            object.__setattr__(self, "storage_path", self.local_dir)
            object.__setattr__(self, "local_dir", None)
        for name, why in (
            ("progress_reporter", "runs and experiments have a display of their own"),
            ("logging_config", "verbose=0, 1 or 2 says how much is shown"),
            ("sync_config", "files are copied to remote storage at every checkpoint and end"),
        ):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, None)
                text = f"RunConfig({name}={value!r}) does nothing: {why}."
                warnings.warn(text, UserWarning, stacklevel=4)
        if self.log_to_file not in (False, True, None):
            text = (
                f"RunConfig(log_to_file={self.log_to_file!r}) does nothing: what workers print is "
                "always kept, in the run's logs directory."
            )
            object.__setattr__(self, "log_to_file", True)
            warnings.warn(text, UserWarning, stacklevel=4)

    def _check_stop(self) -> None:
        if self.stop is None or callable(self.stop):
            return
        if not isinstance(self.stop, Mapping):
            text = "expected a dict of metric thresholds or a function (trial_id, result) -> bool."
            raise _invalid(self, "stop", text, TypeError)
        object.__setattr__(self, "stop", dict(_flat_bounds(self.stop)))
