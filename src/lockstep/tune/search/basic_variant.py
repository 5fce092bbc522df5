"""Random search and grid search: each config is computed from its number alone."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lockstep.checks import is_int
from lockstep.tune.search.sample import Domain, as_random
from lockstep.tune.search.searcher import Searcher
from lockstep.tune.search.space import Space, contains, is_grid

__all__ = ["BasicVariantGenerator", "check_points"]


class BasicVariantGenerator(Searcher):
    """Every point of the grids, ``num_samples`` times, with random values for the rest.

    Args:
        points_to_evaluate: configs (or parts of them) to try first. Each replaces one of
            ``num_samples``; the values that it lacks are drawn as usual.
        max_concurrent: at most this many trials at a time; 0: no limit.
        constant_grid_search: draw the random values once for each pass through the grid, so that
            the points of a pass differ in the grid's values only.
        random_state: a seed, a ``random.Random`` or a numpy generator. The same seed gives the
            same configs.
    """

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__()
        if not is_int(max_concurrent):
            raise TypeError(
                f"BasicVariantGenerator(max_concurrent={max_concurrent!r}): expected an "
                "integer; 0 means no limit."
            )
        if max_concurrent < 0:
            raise ValueError(
                f"BasicVariantGenerator(max_concurrent={max_concurrent}): must be 0 or more; "
                "0 means no limit."
            )
        self._points = check_points("BasicVariantGenerator", points_to_evaluate)
        self._max_concurrent = max_concurrent
        self._constant = bool(constant_grid_search)
        if is_int(random_state):
            self._seed = random_state
        else:
            rng = as_random(random_state)
            self._seed = (random if random_state is None else rng).getrandbits(63)
        self._unfinished: set[str] = set()
        self._suggested = 0
        self._total: int | None = None
        self._space = Space({})
        self._presets: list[Space] = []

    def set_search_properties(
        self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take the space. Raises if a point to evaluate is not in it."""
        super().set_search_properties(metric, mode, config, **spec)
        self._suggested = 0
        self._unfinished.clear()
        self._space = Space(config)
        self._presets = [Space(_overlay(dict(config), point, ())) for point in self._points]
        self._total = self.num_trials(spec.get("num_samples", 1))
        return True

    def num_trials(self, num_samples: int) -> int | None:
        """``num_samples`` times the number of points of the grid; None without a limit."""
        if num_samples < 0:
            return None
        presets = self._presets[:num_samples]
        left = num_samples - len(presets)
        return sum(preset.size for preset in presets) + left * self._space.size

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        """The next config."""
        number = self._suggested
        if self._total is not None and number >= self._total:
            return "FINISHED"
        if self._max_concurrent and len(self._unfinished) >= self._max_concurrent:
            return None
        self._suggested += 1
        self._unfinished.add(trial_id)
        return self._config(number)

    def recall(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Count the config as suggested."""
        self._suggested += 1
        self._unfinished.add(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Allow another trial."""
        self._unfinished.discard(trial_id)

    def _config(self, number: int) -> dict[str, Any]:
        within = number
        for sample, preset in enumerate(self._presets):
            if within < preset.size:
                return preset.resolve(within, self._seed, sample if self._constant else number)
            within -= preset.size
        sample = len(self._presets) + within // self._space.size
        return self._space.resolve(within, self._seed, sample if self._constant else number)


def check_points(owner: str, points: Any) -> list[dict[str, Any]]:
    """``points_to_evaluate`` as a list of dicts."""
    if points is None:
        return []
    if isinstance(points, Mapping) or not isinstance(points, Sequence):
        raise TypeError(f"{owner}(points_to_evaluate={points!r}): expected a list of dicts.")
    for point in points:
        if not isinstance(point, Mapping):
            raise TypeError(
                f"{owner}(points_to_evaluate=[…, {point!r}]): each point has to be a dict."
            )
    return [dict(point) for point in points]


def _overlay(space: dict[str, Any], point: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The space, with a point's values instead of its domains."""
    for key, value in point.items():
        name = "/".join([*path, str(key)])
        if key not in space:
            raise ValueError(
                f"points_to_evaluate has {name!r}={value!r}, which is not in param_space; "
                "add it there or leave it out."
            )
        below = space[key]
        if isinstance(value, Mapping) and isinstance(below, dict) and not is_grid(below):
            space[key] = _overlay(dict(below), value, (*path, str(key)))
            continue
        if is_grid(below) and not contains(below, value):
            warnings.warn(
                f"points_to_evaluate has {name!r}={value!r}, which is none of the values of "
                f"{below!r}; it is tried nevertheless.",
                UserWarning,
                stacklevel=2,
            )
        if isinstance(below, Domain) and not contains(below, value):
            raise ValueError(
                f"points_to_evaluate has {name!r}={value!r}, which {below!r} does not contain; "
                "give a value within it."
            )
        space[key] = value
    return space
