"""From a trainable and a config to a run: what each trial is made of."""

from __future__ import annotations

import inspect
import math
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from numbers import Number
from typing import Any

from lockstep import settings
from lockstep.config import RunConfig, ScalingConfig
from lockstep.engine import Engine, GroupSpec
from lockstep.metrics import describable
from lockstep.train.api import report
from lockstep.train.context import TrainContext
from lockstep.train.datasets import check_datasets
from lockstep.train.driver.scaling import ScalingPolicy
from lockstep.train.record.run import Run, RunPlace
from lockstep.train.serialize import dump
from lockstep.train.trainer import BaseTrainer, DataParallelTrainer, TrainerPayload
from lockstep.train.worker.main import takes_config
from lockstep.tune.execution.resources import Allocation, ResourcePool, ResourceRequest
from lockstep.tune.parameters import resources_of
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search.sample import Categorical
from lockstep.tune.search.space import is_grid, merge
from lockstep.tune.trainable import Trainable, trainable_function

__all__ = ["Launcher", "check_space", "check_trainable", "plain_space"]

_PLAIN = frozenset((str, int, float, bool, type(None)))
_LIBRARIES = ("numpy", "pandas", "pyarrow", "scipy", "sklearn", "torch", "torchvision")
"""What is safe to have imported before a fork, and slow to import."""
_RETURNED = "_metric"
"""What a number that a function returns is reported as."""
_IN_PARTS = ("scipy", "sklearn")
"""Those that are imported piece by piece."""
_OF_A_TRIAL = (
    "failure_config",
    "checkpoint_config",
    "stop",
    "working_dir",
    "hang_warning_s",
    "hang_timeout_s",
    "storage_timeout_s",
)
"""What of a RunConfig a trial may have for itself; the rest is the experiment's."""


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
        takes_config(trainable)


class _Function:
    """A function as a training function: a dict or number that it returns is its last report."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function
        inner = function if hasattr(function, "__name__") else getattr(function, "func", function)
        self.__name__: str = getattr(inner, "__name__", type(inner).__name__)

    def __call__(self, config: dict[str, Any]) -> None:
        result = self.func(config) if takes_config(self.func) else self.func()
        if isinstance(result, Mapping):
            report(result)
        elif isinstance(result, Number):
            report({_RETURNED: result})
        elif result is not None:
            raise TypeError(
                f"{self.__name__}() returned {result!r}; return a dict of metrics, a number, or "
                "nothing, and report the rest with tune.report()."
            )


class _FunctionTrainer(DataParallelTrainer):
    """Of a function or class; its context says what ``with_resources`` did, parts of a GPU, too."""

    trial_resources: dict[str, float] | None = None

    def _context(self, run: Run) -> TrainContext:
        context = super()._context(run)
        if self.trial_resources is None:
            return context
        return replace(context, trial_resources=self.trial_resources)


class Launcher:
    """Makes the runs of one experiment's trials.

    Args:
        trainable: what ``Tuner`` was given.
        run_config: the experiment's.
        machine: what elastic trials are bounded by.
        scheduler: says when ``Trainable`` classes have to save for it.
    """

    def __init__(
        self,
        trainable: Any,
        run_config: RunConfig,
        machine: ResourcePool,
        scheduler: TrialScheduler,
    ) -> None:
        check_trainable(trainable)
        self._trainable = trainable
        self._machine = machine
        self.over_trainer = isinstance(trainable, DataParallelTrainer)
        run_config = replace(run_config, name=None, resume="never")
        if isinstance(trainable, DataParallelTrainer):
            self._template = trainable.with_changes(run_config=run_config)
            self.name = type(trainable).__name__
        else:
            if isinstance(trainable, type):
                kept = run_config.checkpoint_config
                trainable = trainable_function(
                    trainable,
                    checkpoint_frequency=(
                        kept.checkpoint_frequency or scheduler.checkpoint_frequency
                    ),
                    checkpoint_at_end=bool(kept.checkpoint_at_end) or scheduler.pauses,
                )
                kept = replace(kept, checkpoint_frequency=0, checkpoint_at_end=None)
                run_config = replace(run_config, checkpoint_config=kept)
            function = _Function(trainable)
            scaling = ScalingConfig()
            with suppress(Exception):  # resources that depend on the config
                scaling = self._scaling({})
            self._template = _FunctionTrainer(
                function, scaling_config=scaling, run_config=run_config
            )
            self.name = _file_name(function.__name__)
        self._packages: dict[Any, TrainerPayload] = {}
        self._preload = _libraries_in_use()

    @property
    def engine(self) -> Engine:
        """Where trials run, unless one has a ScalingConfig of its own."""
        return self._package(self._template).engine

    def check(self) -> list[str]:
        """Make what all trials share; returns warnings.

        Raises:
            InsufficientResourcesError: no trial could ever run.
            TypeError: something cannot be sent to workers.
        """
        return list(self._package(self._template).warnings)

    def need(self, config: Mapping[str, Any]) -> ResourceRequest:
        """What a trial with this config takes."""
        if not self.over_trainer:
            amounts = resources_of(self._trainable, dict(config))
            return ResourceRequest(1, amounts.get("CPU", 1.0), amounts.get("GPU", 0.0))
        scaling = self._scaling(config)
        cpus = scaling.num_cpus_per_worker
        each = 1.0 if cpus is None else float(cpus)
        smallest, largest = scaling.sizes
        if smallest != largest:
            room = int(self._machine.cpus // each) if each else largest
            largest = max(smallest, min(largest, room))
        return ResourceRequest(largest, each, float(scaling.num_gpus_per_worker))

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
        """A trial's run, new."""
        return Run.create(self.name, self.run_config(config), describable(config), place)

    def reopen_run(self, config: Mapping[str, Any], place: RunPlace) -> Run:
        """A trial's run, gone on with."""
        return Run.reopen(place.storage, self.run_config(config), describable(config))

    def controller_arguments(
        self, config: dict[str, Any], run: Run, share: Allocation, stop: Callable[..., bool]
    ) -> tuple[dict[str, Any], TrainerPayload]:
        """What a Controller needs for a trial's run, and what has to live as long as that."""
        trainer, overrides = self._trainer(config)
        trainer = trainer.with_changes(run_config=replace(self.run_config(config), stop=stop))
        package = self._package(trainer)
        if isinstance(trainer, _FunctionTrainer):
            trainer.trial_resources = resources_of(self._trainable, config)
        arguments = trainer.controller_arguments(package, run, overrides)
        need = share.request
        spec = _sized(arguments["group_spec"], need, share.gpus or None)
        if not self.over_trainer:
            # Those libraries choose their number of threads when they are imported.
            threads = {"OMP_NUM_THREADS": str(max(1, int(need.cpus)))}
            if settings.user_thread_setting(spec.environment) is None:
                spec = replace(spec, environment={**spec.environment, **threads})
            spec = replace(spec, preload=(*spec.preload, *self._preload))
        smallest = min(package.scaling.smallest, need.workers)
        scaling = ScalingPolicy(smallest, need.workers)
        return {**arguments, "group_spec": spec, "scaling": scaling}, package

    def _trainer(self, config: dict[str, Any]) -> tuple[DataParallelTrainer, bytes]:
        """The trainer of a trial, and what its function's config has besides the package's."""
        template = self._template
        rest: dict[str, Any] = {}
        if not self.over_trainer:
            own = config
            if (scaling := self._scaling(config)) != template.scaling_config:
                rest = {"scaling_config": scaling}
        else:
            rest = dict(config)
            own = rest.pop("train_loop_config", {})
            rest.pop("run_config", None)
        merged = merge(template.train_loop_config, own)
        changes: dict[str, Any] = {"train_loop_config": merged}
        for name, value in rest.items():
            if name == "scaling_config":
                changes[name] = self._scaling(config)
            elif name == "datasets":
                changes[name] = check_datasets({**template.datasets, **value})
            else:
                changes[name] = value
        trainer = template.with_changes(**changes)
        overrides = {key: merged[key] for key in own}
        return trainer, _pickle(overrides, template.train_loop_per_worker) if overrides else b""

    def _package(self, trainer: DataParallelTrainer) -> TrainerPayload:
        """What is sent to workers; made once where only the function's config differs."""
        shared = self._template
        differing = [
            value
            for name, value in vars(trainer).items()
            if name not in ("train_loop_config", "run_config")
            and value is not vars(shared).get(name)
        ]
        if not differing:
            if shared not in self._packages:
                self._packages[shared] = shared.package()
            return self._packages[shared]
        return trainer.with_changes(train_loop_config=shared.train_loop_config).package()

    def _scaling(self, config: Mapping[str, Any]) -> ScalingConfig:
        if not self.over_trainer:
            amounts = resources_of(self._trainable, dict(config))
            if gpus := amounts.get("GPU"):
                amounts["GPU"] = math.ceil(gpus)  # a part of one is counted by the machine
            return ScalingConfig(1, bool(gpus), amounts)
        base: ScalingConfig = self._template.scaling_config
        own = config.get("scaling_config")
        if own is None or isinstance(own, ScalingConfig):
            return own or base
        _check_scaling_config(own)
        return replace(base, **own)


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


def _sized(spec: GroupSpec, need: ResourceRequest, gpus: tuple[str, ...] | None) -> GroupSpec:
    return replace(
        spec,
        # A worker would import it, to load its function, at the cost of several forks.
        preload=(*spec.preload, __name__),
        size=need.workers,
        cpus_per_worker=need.cpus or None,
        gpus_per_worker=int(need.gpus) or (1 if need.gpus else 0),
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
        if key not in known:
            raise ValueError(
                f"Tuner(param_space={{{key!r}: …}}): over a {type(trainable).__name__} the keys "
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
    if _is_plain(config):
        return pickle.dumps(config, 5)
    return dump(config, "param_space", like=function)


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return type(value) in (list, tuple) and all(map(_is_plain, value))
