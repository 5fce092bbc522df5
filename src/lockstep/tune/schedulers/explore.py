"""How population based training changes a config: resampling and perturbation."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.checks import is_number
from lockstep.tune.search.sample import Domain, Float, Function, Integer, takes

__all__ = ["check_mutations", "explore", "fill"]


def check_mutations(owner: str, mutations: Mapping[str, Any] | None) -> dict[str, Any]:
    """``hyperparam_mutations`` as a dict; raises unless values can be drawn from each of them."""
    if mutations is None:
        return {}
    if not isinstance(mutations, Mapping):
        raise TypeError(f"{owner}(hyperparam_mutations={mutations!r}): expected a dict.")
    for key, mutation in mutations.items():
        name = f"{owner}(hyperparam_mutations={{{key!r}: {mutation!r}}})"
        if isinstance(mutation, Mapping):
            check_mutations(owner, mutation)
        elif isinstance(mutation, Function):
            raise ValueError(
                f"{name}: a sample_from depends on other values; give a domain such as "
                "tune.uniform(0, 1), or a function without arguments."
            )
        elif isinstance(mutation, (list, tuple)):
            if not mutation:
                raise ValueError(f"{name}: there is nothing to choose; give a value.")
        elif not isinstance(mutation, Domain) and not (callable(mutation) and takes(mutation)):
            raise TypeError(
                f"{name}: expected a domain such as tune.uniform(0, 1), a list of values, a "
                "function without arguments, or a dict of them."
            )
    return dict(mutations)


def fill(
    config: Mapping[str, Any], mutations: Mapping[str, Any], rng: random.Random
) -> dict[str, Any]:
    """The config, with a drawn value for each mutated key that it lacks."""
    filled = dict(config)
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            filled[key] = fill(filled.get(key, {}), mutation, rng)
        elif key not in filled:
            filled[key] = _draw(mutation, rng)
    return filled


def explore(
    config: Mapping[str, Any],
    mutations: Mapping[str, Any],
    resample_probability: float,
    factors: Sequence[float],
    custom: Callable[[dict[str, Any]], dict[str, Any]] | None,
    rng: random.Random,
) -> dict[str, Any]:
    """A changed config: each mutated value is resampled or perturbed."""
    changed = dict(config)
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            changed[key] = explore(
                changed.get(key, {}), mutation, resample_probability, factors, None, rng
            )
        elif key not in changed or rng.random() < resample_probability:
            changed[key] = _draw(mutation, rng)
        else:
            changed[key] = _perturb(changed[key], mutation, factors, rng)
    if custom is None:
        return changed
    final = custom(changed)
    if not isinstance(final, dict):
        raise TypeError(
            f"PopulationBasedTraining(custom_explore_fn=…) returned {final!r}; return the config."
        )
    return final


def _draw(mutation: Any, rng: random.Random) -> Any:
    if isinstance(mutation, Domain):
        return mutation.draw(rng)
    return mutation() if callable(mutation) else rng.choice(list(mutation))


def _perturb(value: Any, mutation: Any, factors: Sequence[float], rng: random.Random) -> Any:
    categories = getattr(mutation, "categories", mutation)
    if isinstance(categories, (list, tuple)):
        if value not in categories:
            return rng.choice(list(categories))
        position = list(categories).index(value) + rng.choice((-1, 1))
        return categories[min(max(position, 0), len(categories) - 1)]
    if not is_number(value):
        return _draw(mutation, rng)  # nothing to multiply
    perturbed = value * rng.choice(tuple(factors))
    if isinstance(mutation, (Float, Integer)):
        perturbed = min(max(perturbed, mutation.lower), mutation.upper)
    # A batch size or a number of layers stays an integer.
    return round(perturbed) if isinstance(value, int) else perturbed
