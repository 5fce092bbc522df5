"""The conformance suite of searchers: the contract of ``lockstep.tune.search.Searcher``.

A test module subclasses it with a ``make_searcher`` method; pytest runs the inherited tests:

    class TestMySearcher(SearcherConformance):
        def make_searcher(self):
            return MySearcher(seed=1)
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from lockstep.tune.search.sample import choice, loguniform, randint, sample_from, uniform
from lockstep.tune.search.searcher import Searcher
from lockstep.tune.search.space import has_unresolved, merge

__all__ = ["SearcherConformance"]

TRIALS = 24
AT_A_TIME = 3


class SearcherConformance:
    """Tests that every searcher passes. Subclass it and define ``make_searcher``.

    Two searchers from ``make_searcher`` must suggest the same configs: give them a seed.
    """

    space: Mapping[str, Any] = {
        "x": uniform(-4.0, 4.0),
        "inner": {"lr": loguniform(1e-5, 1e-1), "layers": [randint(1, 5), 7]},
        "kind": choice(["a", "b", "c"]),
        "twice": sample_from(lambda spec: spec.config.x * 2),
        "constant": "kept",
    }
    """The search space. For a searcher with a space of its own, only constants."""

    def make_searcher(self) -> Searcher:
        """Return a new searcher."""
        raise NotImplementedError("return your searcher from make_searcher()")

    def score(self, config: Mapping[str, Any]) -> float:
        """The ``loss`` that a trial with this config reports."""
        numbers = json.dumps(config, sort_keys=True, default=str)
        return zlib.crc32(numbers.encode()) % 1000 / 1000

    def test_configs_are_whole(self) -> None:
        """A suggestion is a dict with every constant and without unresolved domains."""
        search = _Search(self)
        for _ in range(6):
            config = search.suggest()
            assert isinstance(config, dict)
            assert not has_unresolved(config)
            for key, value in self.space.items():
                if not has_unresolved(value) and not isinstance(value, Mapping):
                    assert config[key] == value

    def test_configs_are_not_shared(self) -> None:
        """Changing a config changes neither another trial's config nor the searcher."""
        search, undisturbed = _Search(self), _Search(self)
        for _ in range(2):
            assert search.suggest() == undisturbed.suggest()
            _empty(search.suggested)

    def test_the_same_arguments_suggest_the_same(self) -> None:
        """Suggestions depend only on the arguments and the reported results."""
        assert _Search(self).run() == _Search(self).run()

    def test_used_again(self) -> None:
        """A searcher that another experiment has used starts over."""
        search = _Search(self)
        first = search.run()
        assert _Search(self, search.searcher).run() == first

    def test_it_ends(self) -> None:
        """There are at least ``num_trials`` suggestions; after them the ``Tuner`` stops."""
        searcher = self.make_searcher()
        searcher.set_search_properties("loss", "min", self.space, num_samples=2)
        total = searcher.num_trials(2)
        assert total is not None
        assert total >= 2
        for number in range(total):
            config = searcher.suggest(f"trial_{number}")
            assert isinstance(config, dict)
            result = {"loss": self.score(config), "training_iteration": 1}
            searcher.on_trial_result(f"trial_{number}", result)
            searcher.on_trial_complete(f"trial_{number}", result)
        assert searcher.num_trials(-1) is None

    def test_trials_that_fail(self) -> None:
        """Suggestions continue after trials that failed, or reported nothing or no number."""
        search = _Search(self)
        endings: list[tuple[Any, bool]] = [
            (None, True),
            (None, False),
            ({"loss": float("nan"), "training_iteration": 1}, False),
            ({"other": 1.0, "training_iteration": 1}, False),
            ({"loss": 0.5, "training_iteration": 1}, True),
            ({"loss": 0.5, "training_iteration": 1}, False),
        ]
        for result, error in endings * 3:
            search.suggest()
            search.end(result, error)
        assert isinstance(search.suggest(), dict)

    def test_a_stranger_ends(self) -> None:
        """The end of an unknown trial changes nothing."""
        search = _Search(self)
        search.searcher.on_trial_complete("unknown", {"loss": 1.0, "training_iteration": 1})
        assert isinstance(search.suggest(), dict)

    def test_recalled_half_way(self) -> None:
        """After a replay of the events, a recreated searcher suggests like the first one."""
        first = _Search(self)
        uninterrupted = first.run()
        for until in (1, TRIALS // 2, TRIALS - 1):
            restored = _Search(self)
            restored.replay(first.past, until)
            assert restored.run() == uninterrupted


class _Search:
    """A searcher and its trials: three run at the same time, the oldest ends first."""

    def __init__(self, suite: SearcherConformance, searcher: Searcher | None = None) -> None:
        self.searcher = searcher or suite.make_searcher()
        taken = self.searcher.set_search_properties(
            "loss", "min", suite.space, num_samples=10 * TRIALS
        )
        self._constants = {} if taken else dict(suite.space)
        self._score = suite.score
        self._configs: list[dict[str, Any]] = []
        self._running: list[tuple[str, dict[str, Any]]] = []
        self.past: list[dict[str, Any] | None] = []
        """The events so far: a suggested config, or None for the end of the oldest trial."""
        self.suggested: dict[str, Any] = {}
        """The last return value of ``suggest()``."""

    def suggest(self) -> dict[str, Any]:
        """Return the next config. While the searcher waits for results, trials end."""
        while True:
            config = self.searcher.suggest(self._next_id())
            if config is not None:
                assert isinstance(config, dict), f"suggest() returned {config!r}"
                self.suggested = config
                return self._started(merge(self._constants, config))
            assert self._running, "suggest() returned None while no trial is running"
            self.end_well()

    def end(self, result: Any, error: bool = False) -> None:
        """End the oldest trial."""
        trial_id, _ = self._running.pop(0)
        self.past.append(None)
        if result is not None:
            self.searcher.on_trial_result(trial_id, result)
        self.searcher.on_trial_complete(trial_id, result, error=error)

    def end_well(self) -> None:
        """End the oldest trial with its score."""
        self.end({"loss": self._score(self._running[0][1]), "training_iteration": 1})

    def replay(self, past: list[dict[str, Any] | None], until: int) -> None:
        """Replay the past to the searcher until there are ``until`` trials."""
        for config in past:
            if len(self._configs) == until:
                return
            if config is None:
                self.end_well()
            else:
                self.searcher.recall(self._next_id(), config)
                self._started(config)

    def run(self) -> list[dict[str, Any]]:
        """Run until there are enough trials; return the configs of all trials."""
        while len(self._configs) < TRIALS:
            while len(self._running) >= AT_A_TIME:
                self.end_well()
            self.suggest()
        return self._configs

    def _next_id(self) -> str:
        return f"trial_{len(self._configs):05d}"

    def _started(self, config: dict[str, Any]) -> dict[str, Any]:
        self._running.append((self._next_id(), config))
        self._configs.append(config)
        self.past.append(config)
        return config


def _empty(node: Any) -> None:
    """Remove everything from nested dicts and lists."""
    if isinstance(node, (dict, list)):
        for child in node.values() if isinstance(node, dict) else node:
            _empty(child)
        node.clear()
