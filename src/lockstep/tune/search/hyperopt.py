"""HyperOpt's tree of Parzen estimators as a searcher."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lockstep.checks import check_int
from lockstep.tune.search.library import LibrarySearcher, Parameter, import_library
from lockstep.tune.search.sample import Categorical, Domain, Float, Integer, Normal
from lockstep.tune.search.searcher import Mode

__all__ = ["HyperOptSearch"]


class HyperOptSearch(LibrarySearcher):
    """Proposes configs with HyperOpt. Needs the extra ``lockstep-train[hyperopt]``.

    Args:
        space: a dict of domains, or of HyperOpt's own (``hp.uniform(…)``); by default the
            ``param_space`` of the ``Tuner``.
        metric, mode: what to optimise; by default the ``TuneConfig``'s.
        points_to_evaluate: configs (or parts of them) to try first.
        n_initial_points: how many random configs come before the estimators.
        random_state_seed: makes the search reproducible.
        gamma: the share of the trials that count as good.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 20,
        random_state_seed: int | None = None,
        gamma: float = 0.25,
    ) -> None:
        self._hyperopt = import_library("HyperOptSearch", "hyperopt", "hyperopt")
        check_int(f"HyperOptSearch(n_initial_points={n_initial_points!r})", n_initial_points, 0)
        if space is not None:
            space = {key: _domain(key, value) for key, value in space.items()}
        super().__init__(space, metric, mode, points_to_evaluate, seed=random_state_seed)
        self._algorithm = partial(
            self._hyperopt.tpe.suggest, n_startup_jobs=n_initial_points, gamma=gamma
        )
        self._domain: Any = None
        self._trials: Any = None
        self._numbers: dict[str, int] = {}

    def _open(self, parameters: Sequence[Parameter]) -> None:
        hp = self._hyperopt.hp
        space = {
            one.name: hp.uniform(one.name, 0, 1)
            if one.choices is None
            else hp.randint(one.name, len(one.choices))
            for one in parameters
        }
        self._domain = self._hyperopt.Domain(lambda point: 0.0, space)
        self._trials = self._hyperopt.Trials()
        self._numbers = {}

    def _ask(self, trial_id: str, seed: int) -> dict[str, Any]:
        [number] = self._trials.new_trial_ids(1)
        self._trials.refresh()
        [document] = self._algorithm([number], self._domain, self._trials, seed)
        self._insert(trial_id, number, document["misc"])
        values = document["misc"]["vals"]
        return {one.name: one.decode(values[one.name][0]) for one in self._parameters}

    def _tell(self, trial_id: str, point: dict[str, Any], loss: float | None) -> None:
        number = self._numbers.pop(trial_id, None)
        if number is None:  # one of points_to_evaluate, which HyperOpt has not seen
            [number] = self._trials.new_trial_ids(1)
            names = [one.name for one in self._parameters]
            misc = {
                "tid": number,
                "cmd": self._domain.cmd,
                "workdir": self._domain.workdir,
                "idxs": {name: [number] for name in names},
                "vals": {one.name: [one.encode(point[one.name])] for one in self._parameters},
            }
            self._insert("", number, misc)
            self._numbers.pop("")
        for trial in self._trials._dynamic_trials:
            if trial["tid"] == number:
                done = loss is not None
                base = self._hyperopt.base
                trial["state"] = base.JOB_STATE_DONE if done else base.JOB_STATE_ERROR
                trial["result"] = (
                    {"loss": loss, "status": base.STATUS_OK}
                    if done
                    else {"status": base.STATUS_FAIL}
                )
        self._trials.refresh()

    def _insert(self, trial_id: str, number: int, misc: dict[str, Any]) -> None:
        [document] = self._trials.new_trial_docs(
            [number], [None], [{"status": self._hyperopt.base.STATUS_NEW}], [misc]
        )
        self._trials.insert_trial_docs([document])
        self._trials.refresh()
        self._numbers[trial_id] = number


_DOMAINS: dict[str, Callable[..., Domain]] = {
    "uniform": lambda low, high: Float(float(low), float(high)),
    "quniform": lambda low, high, q: Float(float(low), float(high), q=float(q)),
    "loguniform": lambda low, high: Float(math.exp(low), math.exp(high), log=True),
    "qloguniform": lambda low, high, q: Float(math.exp(low), math.exp(high), True, float(q)),
    "normal": lambda mean, sd: Normal(float(mean), float(sd)),
    "qnormal": lambda mean, sd, q: Normal(float(mean), float(sd), float(q)),
    "randint": lambda low, high=None: (
        Integer(0, low - 1) if high is None else Integer(low, high - 1)
    ),
}


def _domain(name: str, node: Any) -> Any:
    """A part of a space, with domains instead of HyperOpt's expressions."""
    if isinstance(node, Mapping):
        return {key: _domain(f"{name}/{key}", value) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_domain(f"{name}/{index}", value) for index, value in enumerate(node)]
    kind = getattr(node, "name", None)
    if not hasattr(node, "pos_args"):
        return node
    if kind == "literal":
        return node.obj
    if kind == "dict":
        return {key: _domain(f"{name}/{key}", value) for key, value in node.named_args}
    if kind == "pos_args":
        return [_domain(name, value) for value in node.pos_args]
    if kind == "switch":
        return Categorical([_domain(name, option) for option in node.pos_args[1:]])
    whole = kind == "int"
    while kind in ("int", "float"):
        node = node.pos_args[0]
        kind = node.name
    if kind == "hyperopt_param":
        node = node.pos_args[1]
        kind = node.name
    if kind not in _DOMAINS:
        raise ValueError(
            f"HyperOptSearch(space={{{name!r}: …}}): cannot read HyperOpt's {kind!r}; give a "
            "domain such as tune.uniform(0, 1)."
        )
    named = [value for _, value in node.named_args]
    domain = _DOMAINS[kind](*[value.obj for value in (*node.pos_args, *named)])
    if whole and isinstance(domain, Float):  # hp.uniformint
        return Integer(round(domain.lower), round(domain.upper), q=round(domain.q or 1))
    return domain
