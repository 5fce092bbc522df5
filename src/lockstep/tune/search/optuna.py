"""Optuna's samplers as a searcher: TPE, Gaussian processes, CMA-ES, NSGA-II and the others."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from lockstep.checks import check_seed
from lockstep.metrics import look_up
from lockstep.tune.search.basic_variant import check_points
from lockstep.tune.search.optuna_space import (
    OptunaSpace,
    distributions_of,
    open_space,
    quiet_optuna,
)
from lockstep.tune.search.searcher import Mode, Searcher
from lockstep.tune.search.space import has_unresolved

__all__ = ["OptunaSearch"]

_TRIAL_ID = "lockstep_trial_id"


class OptunaSearch(Searcher):
    """Proposes configs with an Optuna sampler. Needs the extra ``lockstep-train[optuna]``.

    Args:
        space: by default the ``param_space`` of the ``Tuner``. Or a dict of domains or of Optuna
            distributions, or a function that is given an Optuna trial, calls its ``suggest_…``
            methods, and returns None or a dict of more values.
        metric, mode: what to optimise; by default the ``TuneConfig``'s. Lists for several
            objectives.
        points_to_evaluate: configs (or parts of them) to try first.
        sampler: an ``optuna.samplers`` object; by default a ``TPESampler``.
        study_name: the name of the study in ``storage``.
        storage: an ``optuna.storages`` object or its URL, where the study is stored.
        seed: makes the default sampler reproducible.
        evaluated_rewards: the known results of ``points_to_evaluate``: the points are not run, the
            sampler only learns from them.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | Callable[[Any], dict[str, Any] | None] | None = None,
        metric: str | Sequence[str] | None = None,
        mode: Mode | Sequence[Mode] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        sampler: Any = None,
        study_name: str | None = None,
        storage: Any = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(metric, mode)
        optuna = _import_optuna()
        if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
            raise TypeError(
                f"OptunaSearch(sampler={sampler!r}): expected an optuna.samplers object, such as "
                "optuna.samplers.GPSampler()."
            )
        if sampler is not None and seed is not None:
            raise ValueError(
                f"OptunaSearch(sampler=…, seed={seed!r}): give the seed to the sampler itself."
            )
        check_seed("OptunaSearch", seed)
        self._points = check_points("OptunaSearch", points_to_evaluate)
        self._rewards = None if evaluated_rewards is None else list(evaluated_rewards)
        if self._rewards is not None and len(self._rewards) != len(self._points):
            raise ValueError(
                f"OptunaSearch(evaluated_rewards=…) has {len(self._rewards)} value(s) for "
                f"{len(self._points)} point(s); give one for each."
            )
        self._space: OptunaSpace | None = None if space is None else open_space(space)
        self._own_space = space is not None
        self._sampler = sampler or optuna.samplers.TPESampler(seed=seed)
        generators = list(_generators(self._sampler))
        # Drawn from the sampler's own state, so that the sampler's seed determines it.
        self._seed = int(generators[0].randint(2**31 - 1)) if generators else random.getrandbits(31)
        self._study_name = study_name
        self._storage = storage
        self._study: Any = None
        self._numbers: dict[str, int] = {}

    def set_search_properties(
        self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take the space, unless the searcher has its own."""
        super().set_search_properties(metric, mode, config, **spec)
        if not self._metric or not self._mode:
            raise ValueError(
                f"OptunaSearch(metric={self._metric!r}, mode={self._mode!r}) has nothing to "
                "optimise; give metric and mode to it or to the TuneConfig."
            )
        if self._own_space:
            self._open_study()
            return False
        if not has_unresolved(config):
            raise ValueError(
                f"OptunaSearch has nothing to choose: param_space={dict(config)!r} has no domain; "
                "put one into it, such as tune.uniform(0, 1), or give OptunaSearch(space=…)."
            )
        self._space = open_space(config)
        self._open_study()
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal["FINISHED"] | None:
        """The sampler's next config."""
        space, study = self._opened()
        suggested = len(self._numbers)
        if self._rewards is None and suggested < len(self._points):
            study.enqueue_trial(space.parameters_of(self._points[suggested])[0])
        return self._ask(trial_id)

    def recall(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Add the trial to the study, unless its storage has it already."""
        space, study = self._opened()
        if self._storage is not None:
            for trial in study.get_trials(deepcopy=False):
                if trial.user_attrs.get(_TRIAL_ID) == trial_id:
                    self._numbers[trial_id] = trial.number
                    return
        optuna = _import_optuna()
        known = optuna.samplers
        results_suffice = (known.TPESampler, known.GPSampler, known.RandomSampler)
        if not isinstance(self._sampler, results_suffice):
            # The sampler stores data with each trial that it samples, such as a generation. So
            # sample as before; the values are the same if the sampler is deterministic.
            if self._ask(trial_id) == dict(config):
                return
            study.tell(self._numbers.pop(trial_id), state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(space.parameters_of(config, strict=False)[0])
        self._ask(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Let the sampler learn from the result."""
        number = self._numbers.get(trial_id)
        if number is None:
            return
        optuna = _import_optuna()
        values = [look_up(result or {}, name) for name in self._metrics]
        usable = not error and all(map(_is_finite, values))
        state = optuna.trial.TrialState.COMPLETE if usable else optuna.trial.TrialState.FAIL
        _, study = self._opened()
        with quiet_optuna():
            study.tell(number, values if usable else None, state=state, skip_if_finished=True)

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any]) -> dict[str, Any]:
        """A ``param_space`` as Optuna's distributions, by their ``a/b`` names; no constants."""
        return distributions_of(spec)

    @property
    def study(self) -> Any:
        """The Optuna study, for its own plots and analyses; None before the search begins."""
        return self._study

    @property
    def _metrics(self) -> list[str]:
        return [self._metric] if isinstance(self._metric, str) else list(self._metric or ())

    def _opened(self) -> tuple[OptunaSpace, Any]:
        if self._space is None or self._study is None:
            raise RuntimeError(
                "OptunaSearch has no space to search yet; call set_search_properties() first."
            )
        return self._space, self._study

    def _ask(self, trial_id: str) -> dict[str, Any]:
        space, study = self._opened()
        # Seeded for each trial: a restored search continues with the same random numbers.
        number = len(self._numbers)
        for generator in _generators(self._sampler):
            generator.seed(zlib.crc32(f"{self._seed}/{number}".encode()))
        with quiet_optuna():
            trial = study.ask()
            self._numbers[trial_id] = trial.number
            if self._storage is not None:
                trial.set_user_attr(_TRIAL_ID, trial_id)
            return space.suggest(trial)

    def _open_study(self) -> None:
        optuna = _import_optuna()
        self._numbers.clear()
        modes = self._mode if isinstance(self._mode, (list, tuple)) else [self._mode]
        modes = list(modes) * (len(self._metrics) if len(modes) == 1 else 1)
        with quiet_optuna():
            self._study = optuna.create_study(
                storage=self._storage,
                sampler=self._sampler,
                pruner=optuna.pruners.NopPruner(),
                study_name=self._study_name,
                load_if_exists=True,
                directions=["maximize" if mode == "max" else "minimize" for mode in modes],
            )
        assert self._space is not None
        for point in self._points:
            self._space.parameters_of(point)  # raises if it is not in the space
        if self._rewards is not None and not self._study.get_trials(deepcopy=False):
            for point, reward in zip(self._points, self._rewards, strict=True):
                self._add_evaluated(point, reward)

    def _add_evaluated(self, point: Mapping[str, Any], reward: Any) -> None:
        assert self._space is not None
        optuna = _import_optuna()
        parameters, distributions = self._space.parameters_of(point)
        if distributions is None:
            raise ValueError(
                "OptunaSearch(evaluated_rewards=…) needs a space whose distributions are known "
                "in advance; give a dict instead of a function."
            )
        values = list(reward) if isinstance(reward, (list, tuple)) else [reward]
        self._study.add_trial(
            optuna.trial.create_trial(
                values=[float(value) for value in values],
                params=parameters,
                distributions=distributions,
            )
        )


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "OptunaSearch needs Optuna, which is not installed: "
            "pip install 'lockstep-train[optuna]'."
        ) from None
    return optuna


def _generators(sampler: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The numpy generators of a sampler and of its inner samplers, in a fixed order."""
    seen = set() if seen is None else seen
    if id(sampler) in seen:
        return
    seen.add(id(sampler))
    for value in vars(sampler).values() if hasattr(sampler, "__dict__") else ():
        generator = getattr(value, "rng", None)
        if hasattr(generator, "seed") and hasattr(generator, "randint"):
            yield generator
        elif hasattr(value, "sample_independent"):
            yield from _generators(value, seen)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
