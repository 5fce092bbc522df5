"""Every searcher and every scheduler passes the suite of its interface."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Literal

import optuna
import pytest

from lockstep import tune
from lockstep.testing import SchedulerConformance, SearcherConformance
from lockstep.tune.schedulers import (
    PB2,
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from lockstep.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Repeater,
    Searcher,
)
from lockstep.tune.search.optuna import OptunaSearch


class TestBasicVariantGenerator(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return BasicVariantGenerator(random_state=3)


class TestGrid(SearcherConformance):
    space: Mapping[str, Any] = {**SearcherConformance.space, "size": tune.grid_search([1, 2, 4])}

    def make_searcher(self) -> Searcher:
        return BasicVariantGenerator(random_state=3, constant_grid_search=True)


class TestFewAtATime(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return BasicVariantGenerator(random_state=3, max_concurrent=2)


class TestTPE(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return OptunaSearch(seed=5)


class TestCMAES(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return OptunaSearch(
            sampler=optuna.samplers.CmaEsSampler(seed=5, warn_independent_sampling=False)
        )


class TestNSGAII(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return OptunaSearch(sampler=optuna.samplers.NSGAIISampler(seed=5, population_size=6))


class TestDefineByRun(SearcherConformance):
    space: Mapping[str, Any] = {"constant": "kept", "inner": {"layers": 3}}

    def make_searcher(self) -> Searcher:
        def space(trial: optuna.Trial) -> dict[str, Any]:
            if trial.suggest_categorical("kind", ["a", "b"]) == "a":
                trial.suggest_float("inner/lr", 1e-4, 1e-1, log=True)
            return {"added": 1}

        return OptunaSearch(space, seed=5)


class TestLimited(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return ConcurrencyLimiter(OptunaSearch(seed=5), max_concurrent=2)


class TestLimitedInBatches(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return ConcurrencyLimiter(OptunaSearch(seed=5), max_concurrent=2, batch=True)


class TestRepeated(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return Repeater(OptunaSearch(seed=5), repeat=2)


class Halves(Searcher):
    """A user's own: the middle of the widest gap, as short as it gets."""

    def __init__(self) -> None:
        super().__init__()
        self._tried: list[float] = []

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        self._tried = [0.0, 1.0]
        return super().set_search_properties(metric, mode, config, **spec)

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        tried = sorted(self._tried)
        gap = max(range(len(tried) - 1), key=lambda i: tried[i + 1] - tried[i])
        self._tried.append((tried[gap] + tried[gap + 1]) / 2)
        return {"x": self._tried[-1]}

    def recall(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self._tried.append(config["x"])


class TestAnOwnSearcher(SearcherConformance):
    space: Mapping[str, Any] = {"constant": 1}

    def make_searcher(self) -> Searcher:
        return Halves()


class TestFIFO(SchedulerConformance):
    def make_scheduler(self) -> TrialScheduler:
        return FIFOScheduler()


class TestASHA(SchedulerConformance):
    def make_scheduler(self) -> TrialScheduler:
        return ASHAScheduler(max_t=12, grace_period=1, reduction_factor=3)


class TestASHABrackets(SchedulerConformance):
    def make_scheduler(self) -> TrialScheduler:
        return ASHAScheduler(max_t=12, grace_period=1, reduction_factor=2, brackets=3)


class TestMedianStopping(SchedulerConformance):
    def make_scheduler(self) -> TrialScheduler:
        return MedianStoppingRule(
            time_attr="training_iteration", grace_period=2, min_samples_required=2
        )


class TestMedianPausing(SchedulerConformance):
    def make_scheduler(self) -> TrialScheduler:
        return MedianStoppingRule(
            time_attr="training_iteration", grace_period=2, min_time_slice=2, hard_stop=False
        )


class TestHyperBand(SchedulerConformance):
    def make_scheduler(self) -> TrialScheduler:
        return HyperBandScheduler(max_t=12, reduction_factor=3)


@pytest.mark.parametrize("synch", [False, True])
class TestPBT(SchedulerConformance):
    synch = False

    @pytest.fixture(autouse=True)
    def choose(self, synch: bool) -> None:
        self.synch = synch

    def make_scheduler(self) -> TrialScheduler:
        return PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=3,
            hyperparam_mutations={"lr": tune.loguniform(1e-3, 1.0)},
            log_config=False,
            synch=self.synch,
            seed=1,
        )


class TestPB2(SchedulerConformance):
    def make_scheduler(self) -> TrialScheduler:
        return PB2(
            time_attr="training_iteration",
            perturbation_interval=3,
            hyperparam_bounds={"lr": [1e-3, 1.0]},
            log_config=False,
            seed=1,
        )


class Patient(TrialScheduler):
    """A user's own: a trial that has not improved for three results ends."""

    needs_metric = True

    def __init__(self) -> None:
        super().__init__()
        self._best: dict[str, tuple[float, int]] = {}

    def on_trial_result(
        self, tune_controller: Any, trial: Any, result: Mapping[str, Any]
    ) -> Literal["CONTINUE", "PAUSE", "STOP"]:
        assert self.metric is not None
        value = result[self.metric] * (1 if self.mode == "max" else -1)
        best, since = self._best.get(trial.trial_id, (value, 0))
        since = 0 if value > best else since + 1
        self._best[trial.trial_id] = (max(best, value), since)
        return self.CONTINUE if since < 13 else self.STOP


class TestAnOwnScheduler(SchedulerConformance):
    def make_scheduler(self) -> TrialScheduler:
        return Patient()


class Forgetful(Halves):
    """Does not take back what it had suggested."""

    def recall(self, trial_id: str, config: Mapping[str, Any]) -> None:
        pass


class Sharing(Halves):
    """Suggests one and the same dict."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"x": 1}

    def suggest(self, trial_id: str) -> Any:
        return self.config


class Whimsical(Halves):
    """Suggests something else each time it is made."""

    def suggest(self, trial_id: str) -> Any:
        return {"x": uuid.uuid4().hex}


class Stuck(Halves):
    """Waits for trials though there are none."""

    def suggest(self, trial_id: str) -> Any:
        return None


class Hoarding(Halves):
    """Continues where another experiment was."""

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        self._tried = self._tried or [0.0, 1.0]
        return Searcher.set_search_properties(self, metric, mode, config, **spec)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Forgetful, "test_recalled_half_way"),
        (Sharing, "test_configs_are_not_shared"),
        (Whimsical, "test_the_same_arguments_suggest_the_same"),
        (Stuck, "test_trials_that_fail"),
        (Hoarding, "test_used_again"),
    ],
)
def test_the_suite_notices_a_broken_searcher(broken: type[Searcher], test: str) -> None:
    suite = TestAnOwnSearcher()
    suite.make_searcher = broken  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        getattr(suite, test)()
