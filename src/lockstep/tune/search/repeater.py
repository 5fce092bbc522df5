"""Running each config of a searcher several times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lockstep.checks import check_int
from lockstep.metrics import look_up
from lockstep.tune.search.searcher import Searcher
from lockstep.tune.search.wrapped import WrappedSearcher

__all__ = ["TRIAL_INDEX", "Repeater"]

TRIAL_INDEX = "__trial_index__"
"""The key of a config under which a ``Repeater`` numbers the repetitions."""


class Repeater(WrappedSearcher):
    """Runs each config several times, and reports the average to the searcher.

    ``num_samples`` counts trials: 15 with ``repeat=5`` are three configs.

    Args:
        searcher: the searcher.
        repeat: how many trials each config gets.
        set_index: number the repetitions: ``config["__trial_index__"]`` is 0, 1, … (for seeds).
    """

    def __init__(self, searcher: Searcher, repeat: int = 1, set_index: bool = True) -> None:
        check_int(f"Repeater(repeat={repeat!r})", repeat, 1)
        super().__init__(searcher)
        self.repeat = repeat
        self._set_index = set_index
        self._filling: _Group | None = None
        self._group_of: dict[str, _Group] = {}

    def num_trials(self, num_samples: int) -> int | None:
        """The trials of all complete groups."""
        if num_samples < 0:
            return None
        inner = self.searcher.num_trials(max(1, num_samples // self.repeat))
        return None if inner is None else inner * self.repeat

    def set_search_properties(
        self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Pass them on: the searcher makes one config for each group."""
        self._filling, self._group_of = None, {}
        samples = spec.get("num_samples", 1)
        if samples > 0:
            spec["num_samples"] = max(1, samples // self.repeat)
        return super().set_search_properties(metric, mode, config, **spec)

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        """The config of the group that is being filled, or of a new one."""
        if self._filling is None:
            config = self.searcher.suggest(trial_id)
            if not isinstance(config, dict):
                return config
            self._filling = _Group(trial_id, config)
        return self._join(trial_id, self._filling)

    def recall(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Add the trial to its group; the searcher recalls the first of a group."""
        if self._filling is None:
            own = {key: value for key, value in config.items() if key != TRIAL_INDEX}
            self.searcher.recall(trial_id, own)
            self._filling = _Group(trial_id, own)
        self._join(trial_id, self._filling)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Nothing: only averages of complete groups are reported to the searcher."""

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """When the last trial of a group is over, report the average to the searcher."""
        group = self._group_of.pop(trial_id, None)
        if group is None:
            return
        group.ended += 1
        if result is not None:
            group.results.append(result)
        if group.ended < self.repeat:
            return
        metrics = self.metric if isinstance(self.metric, (list, tuple)) else [self.metric]
        averages = {name: _mean(group.results, name) for name in metrics if name}
        found = {name: value for name, value in averages.items() if value is not None}
        self._complete(group.first, found or None, error=not group.results)

    def _join(self, trial_id: str, group: _Group) -> dict[str, Any]:
        config: dict[str, Any] = _copied(group.config)
        if self._set_index:
            config[TRIAL_INDEX] = group.joined
        group.joined += 1
        self._group_of[trial_id] = group
        if group.joined == self.repeat:
            self._filling = None
        return config


@dataclass
class _Group:
    """The trials of one config."""

    first: str
    config: dict[str, Any]
    joined: int = 0
    ended: int = 0
    results: list[Mapping[str, Any]] = field(default_factory=list)


def _mean(results: list[Mapping[str, Any]], metric: str) -> float | None:
    values = [
        value
        for result in results
        if isinstance(value := look_up(result, metric), (int, float)) and math.isfinite(value)
    ]
    return sum(values) / len(values) if values else None


def _copied(node: Any) -> Any:
    """A copy of the dicts and lists, with the same values."""
    if isinstance(node, dict):
        return {key: _copied(value) for key, value in node.items()}
    return [_copied(value) for value in node] if isinstance(node, list) else node
