"""Arguments and resources that are bound to a trainable."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.checkpoint import Checkpoint
from lockstep.checks import is_number
from lockstep.config import ScalingConfig

__all__ = [
    "BoundTrainable",
    "PlacementGroupFactory",
    "resources_of",
    "start_of",
    "with_checkpoint",
    "with_parameters",
    "with_resources",
]

DEFAULT_RESOURCES = {"CPU": 1.0}
"""What a trial takes by default."""


class PlacementGroupFactory:
    """Resources in bundles, as in Ray. A trial takes the sum of its bundles."""

    def __init__(self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK") -> None:
        if isinstance(bundles, Mapping) or not bundles:
            raise ValueError(
                f"PlacementGroupFactory(bundles={bundles!r}): expected a list of dicts, such as "
                "[{'CPU': 1}]."
            )
        if strategy not in ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"):
            raise ValueError(
                f"PlacementGroupFactory(strategy={strategy!r}): expected 'PACK', 'SPREAD', "
                "'STRICT_PACK' or 'STRICT_SPREAD'."
            )
        self.bundles = [_checked("PlacementGroupFactory", bundle) for bundle in bundles]
        self.strategy = strategy

    @property
    def required_resources(self) -> dict[str, float]:
        """The sum of the bundles."""
        total: dict[str, float] = {}
        for bundle in self.bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return total


Resources = (
    Mapping[str, float]
    | ScalingConfig
    | PlacementGroupFactory
    | Callable[[dict[str, Any]], "Mapping[str, float] | ScalingConfig | PlacementGroupFactory"]
)


class _Parameters:
    """Arguments that are pickled once, for all trials."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self._pickled: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._pickled is None:
            import cloudpickle

            self._pickled = cloudpickle.dumps(self.values)
        return _load_parameters, (self._pickled,)


def _load_parameters(pickled: bytes) -> _Parameters:
    import pickle

    parameters = _Parameters(pickle.loads(pickled))
    parameters._pickled = pickled
    return parameters


class BoundTrainable:
    """A training function with arguments and resources bound to it. Called with the config."""

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: tuple[_Parameters, ...] = (),
        resources: Resources | None = None,
        start_from: Checkpoint | None = None,
    ) -> None:
        self.func = function
        self.start_from = start_from
        self.parameters = parameters
        self.resources = resources
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, config: dict[str, Any]) -> Any:
        """Run the function."""
        bound: dict[str, Any] = {}
        for parameters in self.parameters:
            bound.update(parameters.values)
        return self.func(config, **bound)


def with_parameters(trainable: Any, **kwargs: Any) -> Any:
    """A trainable that is called with its config and these arguments.

    The arguments are pickled once for all trials, and are not part of any config. A function gets
    them as keyword arguments, a ``Trainable`` class in ``setup``.

    Raises:
        TypeError: not a trainable, or the trainable does not take such an argument.
    """
    parameters = _Parameters(kwargs)
    if _is_class(trainable):
        _check_takes(trainable.__name__ + ".setup", trainable.setup, 2, kwargs)
        bound = (*getattr(trainable, "_parameters", ()), parameters)
        return _subclass(trainable, _parameters=bound)
    inner = _as_bound("with_parameters", trainable)
    _check_takes(inner.__name__, inner.func, 1, kwargs)
    bound = (*inner.parameters, parameters)
    return BoundTrainable(inner.func, bound, inner.resources, inner.start_from)


def with_resources(trainable: Any, resources: Resources) -> Any:
    """A trainable whose trials take these resources: ``{"cpu": 2, "gpu": 1}``.

    Args:
        trainable: a function or a ``Trainable`` class. A trainer has its ``ScalingConfig``.
        resources: a dict, a ``ScalingConfig``, a ``PlacementGroupFactory``, or a function that
            returns one of these for a config.
    """
    if not callable(resources):
        _amounts(resources)  # raises if they are invalid
    if _is_class(trainable):
        return _subclass(trainable, _resources=(resources,))
    inner = _as_bound("with_resources", trainable)
    return BoundTrainable(inner.func, inner.parameters, resources, inner.start_from)


def with_checkpoint(trainable: Any, checkpoint: Checkpoint) -> Any:
    """A function or class whose trials start from this checkpoint."""
    if _is_class(trainable):
        return _subclass(trainable, _start_from=checkpoint)
    inner = _as_bound("run", trainable)
    return BoundTrainable(inner.func, inner.parameters, inner.resources, checkpoint)


def start_of(trainable: Any) -> Checkpoint | None:
    """The checkpoint that the trials of a function or class start from."""
    name = "_start_from" if isinstance(trainable, type) else "start_from"
    found: Checkpoint | None = getattr(trainable, name, None)
    return found


def resources_of(trainable: Any, config: dict[str, Any]) -> dict[str, float]:
    """The resources of one trial of this function or class: ``{"CPU": …, "GPU": …}``."""
    resources = getattr(trainable, "resources", None)
    if isinstance(trainable, type):
        # In a tuple: a plain function as a class attribute would become a method.
        (resources,) = getattr(trainable, "_resources", (None,))
        if resources is None and hasattr(trainable, "default_resource_request"):
            resources = trainable.default_resource_request(config)
    if resources is None:
        return dict(DEFAULT_RESOURCES)
    return _amounts(resources(config) if callable(resources) else resources)


def _amounts(resources: Any) -> dict[str, float]:
    if isinstance(resources, PlacementGroupFactory):
        return resources.required_resources
    if isinstance(resources, ScalingConfig):
        size = resources.sizes[1]
        cpus = resources.num_cpus_per_worker
        amounts = {"CPU": size * (1.0 if cpus is None else float(cpus))}
        if resources.num_gpus_per_worker:
            amounts["GPU"] = float(size * resources.num_gpus_per_worker)
        return amounts
    return _checked("with_resources", resources)


def _checked(owner: str, resources: Any) -> dict[str, float]:
    if not isinstance(resources, Mapping):
        raise TypeError(f"{owner}({resources!r}): expected a dict, such as {{'cpu': 2, 'gpu': 1}}.")
    amounts: dict[str, float] = {}
    for name, amount in resources.items():
        known = name.upper() if isinstance(name, str) else name
        if not isinstance(known, str):
            raise TypeError(f"{owner}({{{name!r}: {amount!r}}}): expected a resource's name.")
        if not is_number(amount):
            raise TypeError(f"{owner}({{{name!r}: {amount!r}}}): expected a number.")
        if not 0 <= amount < math.inf:
            raise ValueError(
                f"{owner}({{{name!r}: {amount!r}}}): expected a finite number, 0 or more."
            )
        if known == "GPU" and amount > 1 and amount != int(amount):
            raise ValueError(
                f"{owner}({{{name!r}: {amount!r}}}): expected an integer, or a part of one GPU."
            )
        if known not in ("CPU", "GPU"):
            warnings.warn(
                f"{owner}({{{name!r}: {amount!r}}}): only 'cpu' and 'gpu' are counted on one "
                "machine; the other resource has no effect. TuneConfig(max_concurrent_trials=…) "
                "limits the number of trials.",
                UserWarning,
                stacklevel=4,
            )
            continue
        amounts[known] = float(amount)
    return amounts


def _is_class(trainable: Any) -> bool:
    return isinstance(trainable, type) and hasattr(trainable, "setup")


def _subclass(trainable: type, **attributes: Any) -> type:
    named = {"__module__": trainable.__module__, "__qualname__": trainable.__qualname__}
    return type(trainable.__name__, (trainable,), {**named, **attributes})


def _as_bound(function: str, trainable: Any) -> BoundTrainable:
    inner = trainable if isinstance(trainable, BoundTrainable) else BoundTrainable(trainable)
    if isinstance(trainable, type) or not callable(inner.func):
        raise TypeError(
            f"tune.{function}({trainable!r}): expected a training function or a Trainable class; "
            "a trainer has its train_loop_config and its ScalingConfig."
        )
    return inner


def _check_takes(
    name: str, function: Callable[..., Any], positional: int, kwargs: Mapping[str, Any]
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind_partial(*[None] * positional, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"tune.with_parameters: {name}{signature} cannot be called with its config and "
            f"{', '.join(kwargs)}: {error}."
        ) from None
