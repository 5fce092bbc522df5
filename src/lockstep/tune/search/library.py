"""The base of searchers that drive another library: spaces, first points, replay.

A library sees a flat list of parameters. ``LibrarySearcher`` finds them in the space, turns what
the library chose into a config, and counts trials. A subclass only talks to its library.
"""

from __future__ import annotations

import importlib
import math
import random
import warnings
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

from lockstep.checks import check_seed
from lockstep.metrics import look_up
from lockstep.tune.search.basic_variant import check_points
from lockstep.tune.search.sample import (
    Categorical,
    Domain,
    Float,
    Function,
    Integer,
    Normal,
    quantise,
)
from lockstep.tune.search.searcher import Mode, Searcher
from lockstep.tune.search.space import (
    Path,
    Space,
    category_of,
    children,
    contains,
    given_values,
    is_grid,
    path_name,
)

__all__ = ["LibrarySearcher", "Parameter", "import_library", "numpy_draws_from", "quiet_warnings"]

_EDGE = 1e-6


def import_library(searcher: str, module: str, extra: str) -> Any:
    """Import a searcher's library.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise
        raise ImportError(
            f"{searcher} needs {package}, which is not installed: "
            f"pip install 'lockstep-train[{extra}]'.",
            name=package,
        ) from None


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Hide warnings about how a library calls another one: its user cannot act on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def numpy_draws_from(seed: int) -> Iterator[None]:
    """Let a library that draws from numpy's global generator draw from this seed."""
    import numpy as np

    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)


@dataclass(frozen=True)
class Parameter:
    """One domain of a space, as a library sees it.

    Attributes:
        name: the domain's path: ``inner/lr``. Inside a choice, the choice's index is part of it.
        domain: the domain.
    """

    name: str
    domain: Domain

    @property
    def choices(self) -> Sequence[Any] | None:
        """The values of a choice; None for numbers."""
        return self.domain.categories if isinstance(self.domain, Categorical) else None

    @property
    def log(self) -> bool:
        """Whether the numbers are spread by their logarithm."""
        return isinstance(self.domain, (Float, Integer)) and self.domain.log

    def at(self, share: float) -> Any:
        """The value at a share, from 0 to 1, of the domain. Of a choice: the index."""
        domain, share = self.domain, min(max(share, 0.0), 1.0)
        if isinstance(domain, Categorical):
            return min(int(share * len(domain.categories)), len(domain.categories) - 1)
        if isinstance(domain, Normal):
            inside = min(max(share, _EDGE), 1 - _EDGE)
            return quantise(NormalDist(domain.mean, domain.sd).inv_cdf(inside), domain.q)
        assert isinstance(domain, (Float, Integer))
        low, high = _bounds(domain)
        if domain.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        if isinstance(domain, Integer):
            value = round(value / domain.q) * domain.q
        elif domain.q is not None:
            value = quantise(value, domain.q)
        return type(domain.lower)(min(max(value, domain.lower), domain.upper))

    def share_of(self, value: Any) -> float:
        """The share of a value: the inverse of ``at``."""
        domain = self.domain
        if isinstance(domain, Categorical):
            return float((value + 0.5) / len(domain.categories))
        if isinstance(domain, Normal):
            return NormalDist(domain.mean, domain.sd).cdf(value)
        assert isinstance(domain, (Float, Integer))
        low, high = _bounds(domain)
        if domain.log:
            return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        return float((value - low) / (high - low))

    def decode(self, number: float) -> Any:
        """The value of a number that a library proposed: a share, or the index of a choice."""
        return self.at(float(number)) if self.choices is None else int(number)

    def encode(self, value: Any) -> float:
        """The number of a value: the inverse of ``decode``."""
        return self.share_of(value) if self.choices is None else int(value)


class LibrarySearcher(Searcher):
    """Proposes configs with another library. A subclass implements ``_open``, ``_ask``, ``_tell``.

    Everything that the library draws has to come from ``_seed_of(number)``: then a restored search
    continues with the same numbers. A library that keeps a state of its own is asked again for each
    recalled trial; one that does not overrides ``_recall``.

    Args:
        space: a dict of domains; by default the ``param_space`` of the ``Tuner``.
        metric, mode: what to optimise; by default the ``TuneConfig``'s.
        points_to_evaluate: configs (or parts of them) to try first.
        evaluated_rewards: the known results of ``points_to_evaluate``: the points are not run, the
            library only learns from them.
        seed: makes the search reproducible.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        evaluated_rewards: Sequence[float] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(metric, mode)
        owner = type(self).__name__
        check_seed(owner, seed)
        self._points = check_points(owner, points_to_evaluate)
        self._rewards = None if evaluated_rewards is None else list(evaluated_rewards)
        if self._rewards is not None and len(self._rewards) != len(self._points):
            raise ValueError(
                f"{owner}(evaluated_rewards=…) has {len(self._rewards)} value(s) for "
                f"{len(self._points)} point(s); give one for each."
            )
        self._own_space = space
        self._seed = random.getrandbits(31) if seed is None else seed
        self._space = Space({})
        self._root: Mapping[str, Any] = {}
        self._parameters: list[Parameter] = []
        self._suggested = 0
        self._running: dict[str, dict[str, Any] | None] = {}

    # What a subclass implements.

    @abstractmethod
    def _open(self, parameters: Sequence[Parameter]) -> None:
        """Start a search over these parameters; discards the state of an earlier one."""

    @abstractmethod
    def _ask(self, trial_id: str, seed: int) -> dict[str, Any]:
        """A new point: name → value; of a choice, its index."""

    @abstractmethod
    def _tell(self, trial_id: str, point: dict[str, Any], loss: float | None) -> None:
        """The result of a trial, smaller is better; None: it failed."""

    def _recall(self, trial_id: str, point: dict[str, Any], seed: int) -> None:
        """Take back a point that was suggested before a restore."""
        self._ask(trial_id, seed)

    # What the Tuner calls.

    def set_search_properties(
        self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take the space, unless the searcher has its own."""
        super().set_search_properties(metric, mode, config, **spec)
        owner = type(self).__name__
        if not isinstance(self._metric, str) or self._mode not in ("min", "max"):
            raise ValueError(
                f"{owner}(metric={self._metric!r}, mode={self._mode!r}) has nothing to optimise; "
                "give one metric and its mode to it or to the TuneConfig."
            )
        root = config if self._own_space is None else self._own_space
        self._space, self._root = Space(root), root
        self._parameters = list(_parameters(owner, dict(root), ()))
        if not self._parameters:
            raise ValueError(
                f"{owner} has nothing to choose: {dict(root)!r} has no domain; put one into it, "
                "such as tune.uniform(0, 1)."
            )
        self._suggested = 0
        self._running = {}
        points = [self._point_of(point, strict=True) for point in self._points]
        self._open(self._parameters)
        for point, reward in zip(points, self._rewards or (), strict=False):
            loss = float(reward) if self._mode == "min" else -float(reward)
            self._tell("", self._completed(point, "evaluated"), loss)
        return self._own_space is None

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        """The library's next config."""
        number = self._suggested
        if self._rewards is None and number < len(self._points):
            point = self._completed(self._point_of(self._points[number], strict=True), trial_id)
        else:
            point = self._ask(trial_id, self._seed_of(number))
        self._suggested += 1
        self._running[trial_id] = point
        return self._config(point)

    def recall(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Take back a config that was suggested before a restore."""
        number = self._suggested
        point = self._completed(self._point_of(config, strict=False), trial_id)
        if self._rewards is not None or number >= len(self._points):
            self._recall(trial_id, point, self._seed_of(number))
        self._suggested += 1
        self._running[trial_id] = point

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the library the result."""
        point = self._running.pop(trial_id, None)
        if point is None:
            return
        value = look_up(result or {}, str(self._metric))
        usable = isinstance(value, (int, float)) and math.isfinite(value) and not error
        loss = None
        if usable:
            loss = float(value) if self._mode == "min" else -float(value)
        self._tell(trial_id, point, loss)

    # Helpers.

    def _seed_of(self, number: int) -> int:
        """A seed for everything that the library draws for one trial."""
        return zlib.crc32(f"{self._seed}/{number}".encode()) % 2**31

    def _config(self, point: Mapping[str, Any]) -> dict[str, Any]:
        def value_at(path: Path, domain: Domain, spec: Any) -> Any:
            if isinstance(domain, Function):
                return domain.func(spec)
            value = point[path_name(path)]
            return domain.categories[value] if isinstance(domain, Categorical) else value

        return self._space.resolve_with(value_at)

    def _completed(self, point: dict[str, Any], trial_id: str) -> dict[str, Any]:
        """A point with a drawn value for each parameter that it lacks."""
        complete = {}
        for parameter in self._parameters:
            if parameter.name in point:
                complete[parameter.name] = point[parameter.name]
                continue
            rng = random.Random(f"{self._seed}/{trial_id}/{parameter.name}")
            complete[parameter.name] = parameter.at(rng.random())
        return complete

    def _point_of(self, config: Mapping[str, Any], strict: bool) -> dict[str, Any]:
        """The parameters of a config, or of a part of one."""
        owner, point = type(self).__name__, {}
        for key in config if strict else ():
            if key not in self._root:
                raise ValueError(
                    f"{owner}(points_to_evaluate=…) has {key!r}, which is not in the space; "
                    "add it there or leave it out."
                )
        for path, domain, value in given_values(dict(self._root), config):
            if contains(domain, value):
                if isinstance(domain, Categorical):
                    value = category_of(domain, value)
                point[path_name(path)] = value
            elif strict:
                raise ValueError(
                    f"{owner}(points_to_evaluate=…) has {path_name(path)!r}={value!r}, which "
                    f"{domain!r} does not contain; give a value within it."
                )
        return point


def _bounds(domain: Float | Integer) -> tuple[float, float]:
    if isinstance(domain, Float):
        return domain.lower, domain.upper
    # Half a step beyond both bounds: rounding would make the bounds half as likely.
    lowest = domain.lower - domain.q / 2
    return max(lowest, domain.lower / 2) if domain.log else lowest, domain.upper + domain.q / 2


def _parameters(owner: str, node: Any, path: Path) -> Iterator[Parameter]:
    if is_grid(node):
        raise ValueError(
            f"{owner} cannot search the grid_search at {path_name(path)!r}; make it a "
            "tune.choice, or leave search_alg out."
        )
    if isinstance(node, Function):
        return
    if isinstance(node, Domain):
        yield Parameter(path_name(path), node)
        node = list(node.categories) if isinstance(node, Categorical) else ()
    for key, child in children(node):
        yield from _parameters(owner, child, (*path, key))
