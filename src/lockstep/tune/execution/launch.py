"""From a trainable and a config to a run: what each trial is made of."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from numbers import Number
from typing import Any

from lockstep import settings
from lockstep.config import RunConfig, ScalingConfig
from lockstep.engine import Engine, GroupSpec
from lockstep.engine.loop import EventLoop
from lockstep.metrics import describable
from lockstep.train.api import get_checkpoint, report
from lockstep.train.context import TrainContext
from lockstep.train.datasets import check_datasets
from lockstep.train.driver.run_plan import RunPlan
from lockstep.train.driver.scaling import ScalingPolicy
from lockstep.train.function.arguments import takes_config
from lockstep.train.function.serialize import dump
from lockstep.train.record.run import Run, RunPlace
from lockstep.train.trainer import BaseTrainer, DataParallelTrainer, TrainerPayload
from lockstep.tune.execution import reused_worker
from lockstep.tune.execution.resources import Allocation, ResourcePool, ResourceRequest
from lockstep.tune.execution.reuse import ReusingEngine
from lockstep.tune.parameters import resources_of, start_of
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search.sample import Categorical
from lockstep.tune.search.space import is_grid, merge
from lockstep.tune.trainable import Trainable, TrainableFunction

__all__ = [
    "Launcher",
    "PreparedTrial",
    "check_space",
    "check_trainable",
    "describe_trainable",
    "plain_space",
]

_PLAIN = frozenset((str, int, float, bool, type(None)))
_LIBRARIES = ("numpy", "pandas", "pyarrow", "scipy", "sklearn", "torch", "torchvision")
"""What is safe to have imported before a fork, and slow to import."""
_RETURNED = "_metric"
"""What a number that a function returns is reported as."""
_IN_PARTS = ("scipy", "sklearn")
"""The packages whose submodules are imported one by one."""
_OF_A_TRIAL = (
    "failure_config",
    "checkpoint_config",
    "stop",
    "working_dir",
    "hang_warning_s",
    "hang_timeout_s",
    "storage_timeout_s",
    "guard",
)
"""What of a RunConfig a trial may have for itself; the rest is the experiment's."""
_WORKED_OUT = ("train_loop_config", "run_config", "scaling_config")


def check_trainable(trainable: Any) -> None:
    """Raise unless it can be tuned.

    Raises:
        TypeError, ValueError: says what is wrong with it.
    """
    if isinstance(trainable, DataParallelTrainer):
        return
    if isinstance(trainable, BaseTrainer) or (
        isinstance(trainable, type) and not issubclass(trainable, Trainable)
    ):
        raise TypeError(
            f"Tuner({trainable!r}): expected a trainer object, a training function or a subclass "
            "of lockstep.tune.Trainable."
        )
    if not callable(trainable):
        raise TypeError(
            f"Tuner({trainable!r}): expected a trainer, a training function or a Trainable class."
        )
    if not isinstance(trainable, type):
        takes_config(trainable, may_yield=True)


def describe_trainable(trainable: Any) -> tuple[str, str]:
    """What kind of trainable it is, in one word, and a name for it that fits a directory."""
    if isinstance(trainable, DataParallelTrainer):
        return "trainer", trainable.trainer_name
    kind = "class" if isinstance(trainable, type) else "function"
    return kind, _file_name(_Function(trainable).__name__)


class _Function:
    """A function as a training function: what it returns or yields is reported."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function
        inner = function if hasattr(function, "__name__") else getattr(function, "func", function)
        self.__name__: str = getattr(inner, "__name__", type(inner).__name__)

    def __call__(self, config: dict[str, Any]) -> None:
        if not takes_config(self.func, may_yield=True):
            result = self.func()
        elif _wants_checkpoint_dir(self.func):
            with _checkpoint_directory() as directory:
                self._report_all(self.func(config, checkpoint_dir=directory))
            return
        else:
            result = self.func(config)
        self._report_all(result)

    def _report_all(self, result: Any) -> None:
        for row in result if inspect.isgenerator(result) else (result,):
            self._report(row)

    def _report(self, result: Any) -> None:
        if isinstance(result, Mapping):
            report(result)
        elif isinstance(result, Number):
            report({_RETURNED: result})
        elif result is not None:
            raise TypeError(
                f"{self.__name__}() returned {result!r}; return a dict of metrics, a number, or "
                "nothing, and report the rest with tune.report()."
            )


def _wants_checkpoint_dir(function: Callable[..., Any]) -> bool:
    """Whether it is from before ``get_checkpoint()``: ``def f(config, checkpoint_dir=None)``."""
    with suppress(TypeError, ValueError):
        return "checkpoint_dir" in list(inspect.signature(function).parameters)[1:]
    return False


@contextlib.contextmanager
def _checkpoint_directory() -> Iterator[str | None]:
    checkpoint = get_checkpoint()
    if checkpoint is None:
        yield None
    else:
        with checkpoint.as_directory() as directory:
            yield directory


class _FunctionTrainer(DataParallelTrainer):
    """Runs a function or a class; its context shows what ``with_resources`` gave, GPU parts too."""

    trial_resources: dict[str, float] | None = None

    def _context(self, run: Run) -> TrainContext:
        context = super()._context(run)
        if self.trial_resources is None:
            return context
        return replace(context, trial_resources=self.trial_resources)


@dataclass(frozen=True)
class PreparedTrial:
    """What a trial's config results in: a trainer of its own, and the resources it needs."""

    trainer: DataParallelTrainer
    request: ResourceRequest
    overrides: Mapping[str, Any]
    """The values of the function's config that the trial chose."""


class Launcher:
    """Makes the runs of one experiment's trials.

    Args:
        trainable: what ``Tuner`` was given.
        run_config: the experiment's.
        pool: bounds the size of elastic trials.
        scheduler: says how often ``Trainable`` classes have to save for it.
        sources: the trainable's source code, for tracebacks.
        reuse_actors: the trials of a ``Trainable`` class may follow each other in one process.

    Attributes:
        kind, name: as ``describe_trainable`` returns them.
    """

    def __init__(
        self,
        trainable: Any,
        run_config: RunConfig,
        pool: ResourcePool,
        scheduler: TrialScheduler,
        sources: Mapping[str, str] | None = None,
        *,
        reuse_actors: bool = False,
    ) -> None:
        check_trainable(trainable)
        self._trainable = trainable
        self._pool = pool
        self.over_trainer = isinstance(trainable, DataParallelTrainer)
        # Both are the experiment's: a trial's run is placed and resumed by the experiment.
        run_config = replace(run_config, name=None, resume="never")
        self.kind, self.name = describe_trainable(trainable)
        if isinstance(trainable, DataParallelTrainer):
            self._template = trainable.with_changes(run_config=run_config)
        else:
            if isinstance(trainable, type):
                kept = run_config.checkpoint_config
                trainable = TrainableFunction(
                    trainable,
                    checkpoint_frequency=(
                        kept.checkpoint_frequency or scheduler.checkpoint_frequency
                    ),
                    checkpoint_at_end=bool(kept.checkpoint_at_end),
                    keeps=reuse_actors,
                )
                kept = replace(kept, checkpoint_frequency=0, checkpoint_at_end=None)
                run_config = replace(run_config, checkpoint_config=kept)
            function = _Function(trainable)
            scaling = ScalingConfig()
            with suppress(Exception):  # resources that depend on the config
                scaling = _scaling_for(resources_of(self._trainable, {}))
            self._template = _FunctionTrainer(
                function,
                scaling_config=scaling,
                run_config=run_config,
                resume_from_checkpoint=start_of(self._trainable),
            )
        self._template = self._template.with_changes(_kept_sources=sources)
        self._shared_payload: TrainerPayload | None = None
        self._reuses = reuse_actors and self.kind == "class"
        self._reusing: ReusingEngine | None = None
        self._preload = _libraries_in_use()

    @property
    def engine(self) -> Engine:
        """Where trials run, unless one has a ScalingConfig of its own."""
        return self._payload(self._template).engine

    def check(self) -> list[str]:
        """Make what all trials share; returns warnings.

        Raises:
            InsufficientResourcesError: no trial could ever run.
            TypeError: something cannot be sent to workers.
        """
        return list(self._payload(self._template).warnings)

    def request(self, config: Mapping[str, Any]) -> ResourceRequest:
        """The resources that a trial with this config needs."""
        if not self.over_trainer:
            amounts = resources_of(self._trainable, dict(config))
            return ResourceRequest(1, amounts.get("CPU", 1.0), amounts.get("GPU", 0.0))
        own = self._template.config_arguments
        return self._group_request(self._scaling({k: config[k] for k in config if k not in own}))

    def prepare(self, config: Mapping[str, Any]) -> PreparedTrial:
        """Work out a trial's trainer and resources, once.

        Raises:
            Exception: the config does not make a trial; says why.
        """
        template = self._template
        run_config = self.run_config(config)
        if not self.over_trainer:
            amounts = resources_of(self._trainable, dict(config))
            request = ResourceRequest(1, amounts.get("CPU", 1.0), amounts.get("GPU", 0.0))
            scaling, chosen, others = _scaling_for(amounts), config, {}
        else:
            own = template.config_arguments
            scaling = self._scaling({key: config[key] for key in config if key not in own})
            request = self._group_request(scaling)
            others = {
                key: value
                for key, value in config.items()
                if key not in _WORKED_OUT and key not in own
            }
            if "datasets" in others:
                others["datasets"] = check_datasets({**template.datasets, **others["datasets"]})
            chosen = config.get("train_loop_config", {})
            if own:
                chosen = {**chosen, **{key: config[key] for key in config if key in own}}
        merged = merge(template.train_loop_config, chosen)
        if scaling != template.scaling_config:
            others["scaling_config"] = scaling
        trainer = template.with_changes(train_loop_config=merged, run_config=run_config, **others)
        if isinstance(trainer, _FunctionTrainer):
            trainer.trial_resources = amounts
        return PreparedTrial(trainer, request, {key: merged[key] for key in chosen})

    def run_config(self, config: Mapping[str, Any]) -> RunConfig:
        """The run config of a trial."""
        base: RunConfig = self._template.run_config
        own = config.get("run_config") if self.over_trainer else None
        if own is None:
            return base
        if isinstance(own, RunConfig):
            own = {name: getattr(own, name) for name in _OF_A_TRIAL}
        _check_run_config(own)
        return replace(base, **own)

    def open_run(self, config: Mapping[str, Any], place: RunPlace) -> Run:
        """A new run for a trial."""
        return Run.create(self.name, self.run_config(config), describable(config), place)

    def reopen_run(self, config: Mapping[str, Any], place: RunPlace) -> Run:
        """A trial's run, to be resumed."""
        return Run.reopen(place.storage, self.run_config(config), describable(config), leased=False)

    def plan_run(
        self, prepared: PreparedTrial, run: Run, allocation: Allocation
    ) -> tuple[RunPlan, TrainerPayload]:
        """What a Controller needs for a trial's run, and what must exist as long as its workers."""
        trainer, request = prepared.trainer, prepared.request
        payload = self._payload(trainer)
        overrides = b""
        if prepared.overrides:
            overrides = _pickle(dict(prepared.overrides), trainer.train_loop_per_worker)
        plan = trainer.plan_run(payload, run, overrides)
        group = _sized(plan.group, request, allocation.gpus or None)
        # Trials follow each other without a pause in which the server could import the rest.
        preload = (*group.preload, *group.preload_later)
        group = replace(group, preload=preload, preload_later=())
        if not self.over_trainer:
            # Those libraries choose their number of threads when they are imported.
            threads = {"OMP_NUM_THREADS": str(max(1, int(request.cpus)))}
            if settings.user_thread_setting(group.environment) is None:
                group = replace(group, environment={**group.environment, **threads})
            # A worker imports this module to load its function, which costs as much as several
            # forks. Over a trainer it does not, and the server of the trainer's own runs serves.
            group = replace(group, preload=(*group.preload, *self._preload, __name__))
        smallest = min(payload.scaling.smallest, request.workers)
        scaling = ScalingPolicy(smallest, request.workers)
        # Where the script's relative paths begin, for functions that run in the trial's directory.
        started_in = {"TUNE_ORIG_WORKING_DIR": os.getcwd()}
        group = replace(group, environment={**started_in, **group.environment})
        engine = plan.engine
        if self._reuses and not engine.in_this_process:
            if self._reusing is None:
                self._reusing = ReusingEngine(engine)
            engine = self._reusing
            group = replace(group, preload=(*group.preload, reused_worker.__name__))
        return replace(plan, engine=engine, group=group, scaling=scaling), payload

    def finish_reused(self, loop: EventLoop) -> None:
        """No trial follows: let the workers that are kept for one clean up and exit."""
        if self._reusing is not None:
            self._reusing.finish(loop)

    def close_reused(self) -> None:
        """Kill the workers that are kept for another trial. Idempotent."""
        if self._reusing is not None:
            self._reusing.close()

    def _payload(self, trainer: DataParallelTrainer) -> TrainerPayload:
        """What is sent to workers; made once for trials that differ only in the function's config.

        A trial's own values of that config are sent as overrides.
        """
        shared = vars(self._template)
        differs = any(
            # By identity: comparing datasets or configs of users could be slow, or raise.
            value is not shared.get(name)
            for name, value in vars(trainer).items()
            if name not in ("train_loop_config", "run_config", "trial_resources")
        )
        if differs:
            return trainer.with_changes(train_loop_config=shared["train_loop_config"]).payload()
        if self._shared_payload is None:
            self._shared_payload = self._template.payload()
        return self._shared_payload

    def _group_request(self, scaling: ScalingConfig) -> ResourceRequest:
        cpus = scaling.num_cpus_per_worker
        each = 1.0 if cpus is None else float(cpus)
        smallest, largest = scaling.sizes
        if smallest != largest:
            # An elastic trial gets as many workers as the machine holds, so that it can start at
            # all.
            room = int(self._pool.cpus // each) if each else largest
            largest = max(smallest, min(largest, room))
        return ResourceRequest(largest, each, float(scaling.num_gpus_per_worker))

    def _scaling(self, config: Mapping[str, Any]) -> ScalingConfig:
        """The scaling config of a trial over a trainer."""
        base: ScalingConfig = self._template.scaling_config
        own = config.get("scaling_config")
        if own is None or isinstance(own, ScalingConfig):
            return own or base
        _check_scaling_config(own)
        return replace(base, **own)


def _scaling_for(amounts: Mapping[str, float]) -> ScalingConfig:
    """One worker with these resources."""
    return ScalingConfig(1, bool(amounts.get("GPU")), dict(amounts))


def _file_name(name: str) -> str:
    """A name fit for a directory: ``<lambda>`` is ``lambda``."""
    return re.sub(r"[^\w.-]+", "", name)[:60] or "trial"


def _libraries_in_use() -> tuple[str, ...]:
    """Libraries that this process has loaded, so trials are likely to need them.

    Importing torch in each trial would take a hundred times as long as forking a worker with it.
    """
    roots = [name for name in _LIBRARIES if name in sys.modules]
    parts = tuple(f"{root}." for root in roots if root in _IN_PARTS)
    loaded = [name for name in list(sys.modules) if parts and name.startswith(parts)]
    public = [name for name in loaded if name.count(".") == 1 and "._" not in name]
    # The first optimizer would import it, for a second.
    lazy = ("torch._dynamo",) if "torch" in roots else ()
    return (*roots, *sorted(public), *lazy)


def _sized(group: GroupSpec, request: ResourceRequest, gpus: tuple[str, ...] | None) -> GroupSpec:
    return replace(
        group,
        size=request.workers,
        cpus_per_worker=request.cpus or None,
        gpus_per_worker=request.gpus,
        gpus=gpus,
    )


def plain_space(trainable: Any, space: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy where a trainer's ScalingConfigs that hold domains are dicts, which are searched."""
    plain = dict(space or {})
    if isinstance(trainable, DataParallelTrainer) and "scaling_config" in plain:
        plain["scaling_config"] = _as_dict(plain["scaling_config"])
    return plain


def _as_dict(node: Any) -> Any:
    if isinstance(node, ScalingConfig) and node.is_searched:
        return {field.name: getattr(node, field.name) for field in fields(node)}
    if is_grid(node):
        return {"grid_search": [_as_dict(value) for value in node["grid_search"]]}
    if isinstance(node, Categorical):
        return Categorical([_as_dict(value) for value in node.categories])
    return node


def check_space(trainable: Any, space: Mapping[str, Any]) -> None:
    """Raise if the keys of a trainer's space are not the trainer's arguments.

    Raises:
        ValueError: names the key, and where it belongs.
    """
    if not isinstance(trainable, DataParallelTrainer):
        return
    known = sorted(name for name in vars(trainable) if not name.startswith("_"))
    for key, value in space.items():
        if key not in known and key not in trainable.config_arguments:
            raise ValueError(
                f"Tuner(param_space={{{key!r}: …}}): over a {trainable.trainer_name} the keys "
                f"are its arguments ({', '.join(known)}); hyperparameters go into "
                "'train_loop_config'."
            )
        if type(value) is dict and not is_grid(value):
            if key == "scaling_config":
                _check_scaling_config(value)
            elif key == "run_config":
                _check_run_config(value)


def _check_scaling_config(own: Any) -> None:
    known = list(inspect.signature(ScalingConfig).parameters)
    if not isinstance(own, Mapping) or not set(own) <= set(known):
        raise ValueError(
            f"param_space['scaling_config']={own!r}: expected a ScalingConfig or a dict of "
            f"{', '.join(known)}."
        )


def _check_run_config(own: Any) -> None:
    unknown = sorted(set(own) - set(_OF_A_TRIAL))
    if unknown:
        raise ValueError(
            f"param_space['run_config'][{unknown[0]!r}]: trials share it; give it to "
            f"Tuner(run_config=…). A trial's own may be {', '.join(_OF_A_TRIAL)}."
        )


def _pickle(config: dict[str, Any], function: Callable[..., Any]) -> bytes:
    # cloudpickle takes much longer, and there may be thousands of trials.
    if _is_plain(config):
        return pickle.dumps(config, 5)
    return dump(config, "param_space", like=function)


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return type(value) in (list, tuple) and all(map(_is_plain, value))
