"""Search spaces for Optuna: from an Optuna trial to a config, and back to its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import NormalDist
from typing import Any, Protocol

from lockstep.metrics import flatten
from lockstep.tune.search.sample import (
    Categorical,
    Domain,
    Float,
    Function,
    Integer,
    Normal,
    quantise,
)
from lockstep.tune.search.space import (
    Path,
    Space,
    category_of,
    children,
    contains,
    given_values,
    has_unresolved,
    is_grid,
    path_name,
)

__all__ = ["OptunaSpace", "distributions_of", "open_space", "quiet_optuna"]

_PRIMITIVE = (str, bool, int, float, type(None))
_EDGE = 1e-6


class OptunaSpace(Protocol):
    """A search space for Optuna."""

    def suggest(self, trial: Any) -> dict[str, Any]:
        """A config with values that an Optuna trial suggests."""

    def parameters_of(
        self, config: Mapping[str, Any], strict: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """A config (or a part of one) as Optuna's parameters, and their distributions if known.

        A value that is not in the space is left out, or (``strict``) raises.
        """


def open_space(space: Any) -> OptunaSpace:
    """A space of domains, of Optuna distributions, or a function."""
    if not isinstance(space, Mapping):
        if callable(space):
            return _DefinedByRun(space)
        raise TypeError(
            f"OptunaSearch(space={space!r}): expected a dict, or a function of an Optuna trial."
        )
    if not space:
        raise ValueError("OptunaSearch(space={}) has nothing to choose; name a hyperparameter.")
    flat = flatten(space)
    if has_unresolved(dict(space)) or not any(map(_is_distribution, flat.values())):
        return _OfDomains(space)
    return _OfDistributions(flat)


class _OfDistributions:
    """A dict of Optuna distributions; other values are constants."""

    def __init__(self, flat: dict[str, Any]) -> None:
        self._flat = flat

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Suggest a value for each distribution."""
        return _unflatten(
            {
                name: _suggest(trial, name, value) if _is_distribution(value) else value
                for name, value in self._flat.items()
            }
        )

    def parameters_of(
        self, config: Mapping[str, Any], strict: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values by their ``a/b`` names."""
        given = flatten(config)
        names = [n for n, value in self._flat.items() if _is_distribution(value) and n in given]
        if strict:
            _check_known(given, self._flat)
        return {name: given[name] for name in names}, {name: self._flat[name] for name in names}


class _DefinedByRun:
    """A function that calls the ``suggest_…`` methods of an Optuna trial."""

    def __init__(self, function: Callable[[Any], dict[str, Any] | None]) -> None:
        self._function = function

    def suggest(self, trial: Any) -> dict[str, Any]:
        """The suggested values, and the values that the function returned."""
        constants = self._function(trial)
        if constants is not None and not isinstance(constants, dict):
            raise TypeError(
                f"OptunaSearch(space=…): the function returned {constants!r}; return None, or a "
                "dict of more values."
            )
        return _unflatten({**trial.params, **(constants or {})})

    def parameters_of(
        self, config: Mapping[str, Any], strict: bool = True
    ) -> tuple[dict[str, Any], None]:
        """The complete config: Optuna ignores the values that the function does not suggest."""
        return flatten(config), None


class _OfDomains:
    """A ``param_space``: each domain is a parameter, named by its path."""

    def __init__(self, space: Mapping[str, Any]) -> None:
        self._space = Space(space)
        self._root = space
        _check_gridless(dict(space), ())

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Suggest a value for each domain; for one inside a choice, only if it is chosen."""

        def suggest_value(path: Path, domain: Domain, spec: Any) -> Any:
            if isinstance(domain, Function):
                return domain.func(spec)
            return _to_value(domain, _suggest(trial, path_name(path), _distribution(domain)))

        return self._space.resolve_with(suggest_value)

    def parameters_of(
        self, config: Mapping[str, Any], strict: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values that Optuna would have suggested for this config."""
        parameters: dict[str, Any] = {}
        distributions: dict[str, Any] = {}
        if strict:
            _check_known(config, self._root)
        for path, domain, value in given_values(dict(self._root), config):
            name = path_name(path)
            if contains(domain, value):
                parameters[name] = _to_parameter(domain, value)
                distributions[name] = _distribution(domain)
            elif strict:
                raise ValueError(
                    f"{name!r}={value!r} is not within {domain!r}; give a value that is."
                )
        return parameters, distributions


def distributions_of(space: Mapping[str, Any]) -> dict[str, Any]:
    """The distribution of each domain by its ``a/b`` name."""
    _check_gridless(dict(space), ())
    found: dict[str, Any] = {}

    def collect(path: Path, node: Any) -> None:
        if isinstance(node, Domain):
            if not isinstance(node, Function):
                found[path_name(path)] = _distribution(node)
            return
        for key, child in children(node):
            collect((*path, key), child)

    collect((), dict(space))
    return found


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Suppress Optuna's log lines about new studies and fixed parameters."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _suggest(trial: Any, name: str, distribution: Any) -> Any:
    if hasattr(distribution, "choices"):
        return trial.suggest_categorical(name, distribution.choices)
    kind = type(distribution).__name__
    suggest = trial.suggest_int if kind.startswith("Int") else trial.suggest_float
    return suggest(
        name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
    )


def _distribution(domain: Domain) -> Any:
    from optuna import distributions

    if isinstance(domain, (Float, Integer)) and _in_log_steps(domain):
        # Optuna has no logarithmic steps, so it chooses the number of steps instead.
        q = domain.q or 1
        return distributions.IntDistribution(
            round(domain.lower / q), round(domain.upper / q), log=True
        )
    if isinstance(domain, Float):
        return distributions.FloatDistribution(domain.lower, domain.upper, domain.log, domain.q)
    if isinstance(domain, Integer):
        return distributions.IntDistribution(domain.lower, domain.upper, domain.log, domain.q)
    if isinstance(domain, Normal):  # by its quantile: every sampler supports a uniform number
        return distributions.FloatDistribution(_EDGE, 1 - _EDGE)
    assert isinstance(domain, Categorical)
    if _is_primitive(domain):
        return distributions.CategoricalDistribution(tuple(domain.categories))
    return distributions.CategoricalDistribution(tuple(range(len(domain.categories))))


def _in_log_steps(domain: Float | Integer) -> bool:
    return domain.log and domain.q not in (None, 1)


def _to_value(domain: Domain, parameter: Any) -> Any:
    """The value of the domain for Optuna's parameter."""
    if isinstance(domain, Categorical):
        return parameter if _is_primitive(domain) else domain.categories[parameter]
    if isinstance(domain, Normal):
        return quantise(NormalDist(domain.mean, domain.sd).inv_cdf(parameter), domain.q)
    if isinstance(domain, Integer):
        return parameter * domain.q if _in_log_steps(domain) else parameter
    assert isinstance(domain, Float)
    return quantise(parameter * (domain.q or 1) if _in_log_steps(domain) else parameter, domain.q)


def _to_parameter(domain: Domain, value: Any) -> Any:
    """Optuna's parameter for a value of the domain."""
    if isinstance(domain, Categorical):
        return value if _is_primitive(domain) else category_of(domain, value)
    if isinstance(domain, Normal):
        return min(max(NormalDist(domain.mean, domain.sd).cdf(value), _EDGE), 1 - _EDGE)
    assert isinstance(domain, (Float, Integer))
    if _in_log_steps(domain):
        return round(value / (domain.q or 1))
    return float(value) if isinstance(domain, Float) else int(value)


def _is_primitive(domain: Categorical) -> bool:
    return all(isinstance(category, _PRIMITIVE) for category in domain.categories)


def _is_distribution(value: Any) -> bool:
    return hasattr(value, "to_internal_repr") and hasattr(value, "single")


def _check_gridless(node: Any, path: Path) -> None:
    if is_grid(node):
        raise ValueError(
            f"OptunaSearch cannot search the grid_search at {path_name(path)!r}; make it a "
            "tune.choice, or leave search_alg out."
        )
    for key, child in children(node):
        _check_gridless(child, (*path, key))


def _check_known(config: Mapping[str, Any], space: Mapping[str, Any]) -> None:
    for key in config:
        if key not in space:
            raise ValueError(
                f"points_to_evaluate has {key!r}, which is not in the space; add it there or "
                "leave it out."
            )


def _unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split("/")
        inside = nested
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[last] = value
    return nested
