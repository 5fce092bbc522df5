"""The domains of a search space, and the functions that create them.

A domain has no random state: the caller of ``draw`` brings it. So the same seed gives the same
values in every order and after every restart.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.checks import is_finite, is_int

__all__ = [
    "Categorical",
    "Domain",
    "Float",
    "Function",
    "Integer",
    "Normal",
    "as_random",
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quantise",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "takes",
    "uniform",
]


class Domain:
    """The values one hyperparameter may take."""

    def sample(self, spec: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """Draw one value, or a list of ``size``.

        Args:
            spec: the argument for the function of ``sample_from``.
            size: how many values.
            random_state: a seed, a ``random.Random`` or a numpy generator; by default Python's own.
        """
        rng = as_random(random_state)
        drawn = [self.draw(rng, spec) for _ in range(size)]
        return drawn[0] if size == 1 else drawn

    def draw(self, rng: random.Random, spec: Any = None) -> Any:
        """Draw one value."""
        raise NotImplementedError

    def is_valid(self, value: Any) -> bool:
        """Whether the value could have been drawn, rounding aside."""
        raise NotImplementedError


@dataclass(frozen=True)
class Float(Domain):
    """Numbers from ``lower`` to ``upper``, evenly or by their logarithm, in steps of ``q``."""

    lower: float
    upper: float
    log: bool = False
    q: float | None = None

    def draw(self, rng: random.Random, spec: Any = None) -> float:
        """Draw one value."""
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.lower), math.log(self.upper)))
            return min(max(quantise(drawn, self.q), self.lower), self.upper)
        if self.q is None:
            return rng.uniform(self.lower, self.upper)
        steps = rng.randint(round(self.lower / self.q), round(self.upper / self.q))
        return quantise(steps * self.q, self.q)

    def is_valid(self, value: Any) -> bool:
        """Whether the value is a number within the bounds."""
        return is_finite(value) and self.lower <= value <= self.upper


@dataclass(frozen=True)
class Integer(Domain):
    """Integers from ``lower`` to ``upper``, both included, in steps of ``q``."""

    lower: int
    upper: int
    log: bool = False
    q: int = 1

    def draw(self, rng: random.Random, spec: Any = None) -> int:
        """Draw one value."""
        if self.log:
            # Half a step beyond both bounds: rounding would make the bounds half as likely.
            lowest = math.log(self.lower - 0.5 * self.q * (self.lower > 0.5 * self.q))
            drawn = math.exp(rng.uniform(lowest, math.log(self.upper + 0.5 * self.q)))
            return min(max(round(drawn / self.q) * self.q, self.lower), self.upper)
        return rng.randint(self.lower // self.q, self.upper // self.q) * self.q

    def is_valid(self, value: Any) -> bool:
        """Whether the value is an integer within the bounds."""
        return is_finite(value) and value == int(value) and self.lower <= value <= self.upper


@dataclass(frozen=True)
class Normal(Domain):
    """Numbers around ``mean``, normally distributed, rounded to ``q``."""

    mean: float = 0.0
    sd: float = 1.0
    q: float | None = None

    def draw(self, rng: random.Random, spec: Any = None) -> float:
        """Draw one value."""
        return quantise(rng.gauss(self.mean, self.sd), self.q)

    def is_valid(self, value: Any) -> bool:
        """Whether the value is a number."""
        return is_finite(value)


@dataclass(frozen=True)
class Categorical(Domain):
    """One of several values, all equally likely. A value may contain domains."""

    categories: Sequence[Any]

    def draw(self, rng: random.Random, spec: Any = None) -> Any:
        """Draw one of the values."""
        return self.categories[rng.randrange(len(self.categories))]

    def is_valid(self, value: Any) -> bool:
        """Whether the value is one of them."""
        return any(value is category or value == category for category in self.categories)

    def __len__(self) -> int:
        return len(self.categories)

    def __getitem__(self, index: int) -> Any:
        return self.categories[index]


@dataclass(frozen=True)
class Function(Domain):
    """The result of a function of the other values."""

    func: Callable[[Any], Any]

    def draw(self, rng: random.Random, spec: Any = None) -> Any:
        """Call the function with the other values."""
        return self.func(spec)

    def is_valid(self, value: Any) -> bool:
        """True: a function may return anything."""
        return True


def uniform(lower: float, upper: float) -> Float:
    """A uniformly distributed number between the bounds."""
    _check_bounds("uniform", lower, upper)
    return Float(float(lower), float(upper))


def quniform(lower: float, upper: float, q: float) -> Float:
    """A multiple of ``q`` between the bounds, both included."""
    _check_bounds("quniform", lower, upper)
    _check_step("quniform", lower, upper, q)
    return Float(float(lower), float(upper), q=float(q))


def loguniform(lower: float, upper: float, base: float = 10) -> Float:
    """A number whose logarithm is uniform: 1e-4 to 1e-3 is as likely as 1e-3 to 1e-2.

    Any ``base`` gives the same distribution.
    """
    _check_bounds("loguniform", lower, upper, log_base=base)
    return Float(float(lower), float(upper), log=True)


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Float:
    """Like ``loguniform``, rounded to a multiple of ``q``."""
    _check_bounds("qloguniform", lower, upper, log_base=base)
    _check_step("qloguniform", lower, upper, q)
    return Float(float(lower), float(upper), log=True, q=float(q))


def randn(mean: float = 0.0, sd: float = 1.0) -> Normal:
    """A normally distributed number."""
    _check_normal("randn", mean, sd)
    return Normal(float(mean), float(sd))


def qrandn(mean: float, sd: float, q: float) -> Normal:
    """A normally distributed number, rounded to a multiple of ``q``."""
    _check_normal("qrandn", mean, sd)
    _check_positive("qrandn", "q", q)
    return Normal(float(mean), float(sd), float(q))


def randint(lower: int, upper: int) -> Integer:
    """An integer, ``lower`` included, ``upper`` not."""
    _check_bounds("randint", lower, upper, integer=True)
    return Integer(int(lower), int(upper) - 1)


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """An integer multiple of ``q`` between the bounds, both included."""
    _check_bounds("qrandint", lower, upper, integer=True)
    lowest, highest = _multiples("qrandint", lower, upper, q)
    return Integer(lowest, highest, q=int(q))


def lograndint(lower: int, upper: int, base: float = 10) -> Integer:
    """An integer whose logarithm is uniform, ``lower`` included, ``upper`` not."""
    _check_bounds("lograndint", lower, upper, integer=True, log_base=base)
    return Integer(int(lower), int(upper) - 1, log=True)


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Integer:
    """Like ``lograndint``, a multiple of ``q``; both bounds included."""
    _check_bounds("qlograndint", lower, upper, integer=True, log_base=base)
    lowest, highest = _multiples("qlograndint", lower, upper, q)
    return Integer(lowest, highest, log=True, q=int(q))


def choice(categories: Iterable[Any]) -> Categorical:
    """One of these values. A dict may contain domains: they are drawn if it is chosen."""
    return Categorical(_listed("choice", "categories", categories))


def sample_from(func: Callable[[Any], Any]) -> Function:
    """The result of ``func`` for the other values: ``lambda spec: spec.config.width * 2``.

    ``spec.config`` has every value of the space, also of other ``sample_from``, as attributes and
    by key.
    """
    if not callable(func) or not takes(func, None):
        raise TypeError(
            f"tune.sample_from({func!r}): expected a function of one argument, such as "
            "lambda spec: spec.config.width * 2."
        )
    return Function(func)


def grid_search(values: Iterable[Any]) -> dict[str, list[Any]]:
    """Try each of these values, in all combinations with the other grids."""
    return {"grid_search": _listed("grid_search", "values", values)}


def as_random(state: Any) -> random.Random:
    """A ``random.Random`` from a seed, a ``random.Random`` or a numpy generator."""
    if state is None:
        return random.Random(random.getrandbits(64))
    if isinstance(state, random.Random):
        return state
    if is_int(state):
        return random.Random(state)
    for method in ("integers", "randint"):  # numpy's Generator, numpy's RandomState
        if hasattr(state, method):
            return random.Random(int(getattr(state, method)(0, 2**31 - 1)))
    raise TypeError(
        f"random_state={state!r}: expected an integer, a random.Random or a numpy generator."
    )


def takes(func: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function's signature allows a call with these arguments."""
    try:
        inspect.signature(func).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        pass
    return True


def _listed(function: str, name: str, values: Iterable[Any]) -> list[Any]:
    if isinstance(values, (str, bytes, dict)) or not isinstance(values, Iterable):
        raise TypeError(
            f"tune.{function}({name}={values!r}): expected a list of values, such as [1, 2, 3]."
        )
    found = list(values)
    if not found:
        raise ValueError(f"tune.{function}({name}=[]): there is nothing to choose; give a value.")
    return found


def _check_number(function: str, name: str, value: object, integer: bool = False) -> None:
    expected = "an integer" if integer else "a finite number"
    if not is_finite(value) or (integer and value != int(value)):
        raise TypeError(f"tune.{function}({name}={value!r}): expected {expected}.")


def _check_positive(function: str, name: str, value: float, integer: bool = False) -> None:
    _check_number(function, name, value, integer)
    if value <= 0:
        raise ValueError(f"tune.{function}({name}={value!r}): must be above 0.")


def _check_bounds(
    function: str,
    lower: float,
    upper: float,
    *,
    integer: bool = False,
    log_base: float | None = None,
) -> None:
    _check_number(function, "lower", lower, integer)
    _check_number(function, "upper", upper, integer)
    if lower >= upper:
        raise ValueError(
            f"tune.{function}(lower={lower!r}, upper={upper!r}): lower must be below upper."
        )
    if log_base is None:
        return
    if lower <= 0:
        raise ValueError(f"tune.{function}(lower={lower!r}): must be above 0 to have a logarithm.")
    _check_number(function, "base", log_base)
    if log_base <= 1:
        raise ValueError(f"tune.{function}(base={log_base!r}): must be above 1.")


def _multiples(function: str, lower: int, upper: int, q: int) -> tuple[int, int]:
    """The smallest and the largest multiple of ``q`` within the bounds."""
    _check_positive(function, "q", q, integer=True)
    lowest, highest = -(-int(lower) // int(q)) * int(q), int(upper) // int(q) * int(q)
    if lowest > highest:
        raise ValueError(
            f"tune.{function}(lower={lower!r}, upper={upper!r}, q={q!r}): no multiple of q is "
            "between the bounds; give a smaller q."
        )
    return lowest, highest


def _check_step(function: str, lower: float, upper: float, q: float) -> None:
    _check_positive(function, "q", q)
    for name, bound in (("lower", lower), ("upper", upper)):
        if not math.isclose(bound / q, round(bound / q), rel_tol=1e-9, abs_tol=1e-9):
            raise ValueError(
                f"tune.{function}({name}={bound!r}, q={q!r}): {name} must be a multiple of q."
            )


def _check_normal(function: str, mean: float, sd: float) -> None:
    _check_number(function, "mean", mean)
    _check_positive(function, "sd", sd)


def quantise(value: float, q: float | None) -> float:
    """The value rounded to a multiple of ``q``; unchanged if ``q`` is None."""
    # Twelve digits: 3 × 0.1 is 0.3, not 0.30000000000000004.
    return value if q is None else float(f"{round(value / q) * q:.12g}")
