"""Plots of an experiment. Needs the extra ``lockstep-train[plots]``.

Each function returns a ``plotly.graph_objects.Figure``. ``metric`` and ``mode`` are by default the
``TuneConfig``'s, and ``params`` the hyperparameters that differ between trials.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.checks import check_int, is_finite
from lockstep.metrics import look_up
from lockstep.tune.search.optuna_space import quiet_optuna

if TYPE_CHECKING:
    import pandas as pd

    from lockstep.tune.result_grid import ResultGrid

__all__ = [
    "plot_history",
    "plot_importance",
    "plot_learning_curves",
    "plot_parallel_coordinates",
]

_CONFIG = "config/"


def plot_history(results: ResultGrid, metric: str | None = None, mode: str | None = None) -> Any:
    """The metric of each trial, in order, and the best value so far."""
    graph = _import_plotly("plot_history")
    table, metric, mode = _scored("plot_history", results, metric, mode)
    scores = table[metric]
    best = scores.cummax() if mode == "max" else scores.cummin()
    figure = graph.Figure()
    figure.add_scatter(
        x=list(table.index),
        y=list(scores),
        mode="markers",
        name="trials",
        text=[_describe(row) for _, row in _parameters(table).iterrows()],
    )
    figure.add_scatter(x=list(table.index), y=list(best), mode="lines", name="best until then")
    figure.update_layout(title="History", xaxis_title="trial", yaxis_title=metric)
    return figure


def plot_learning_curves(
    results: ResultGrid,
    metric: str | None = None,
    mode: str | None = None,
    top: int | None = None,
) -> Any:
    """The metric of each report, a line for each trial; the best trial's line stands out.

    Args:
        results: the ``ResultGrid`` that ``fit()`` returned.
        metric, mode: what is plotted, and which trial is best: the one with the best last value.
        top: only this many of the best trials; by default all.
    """
    caller = "plot_learning_curves"
    graph = _import_plotly(caller)
    if top is not None:
        check_int(f"{caller}(top={top!r})", top, 1)
    table, metric, mode = _scored(caller, results, metric, mode)
    described = _parameters(table)
    best_last = table.sort_values(metric, ascending=mode == "max")[metric]
    # Drawn in this order, so that better lines lie over worse ones.
    numbers = list(best_last.index)[-top if top is not None else None :]
    figure = graph.Figure()
    for number in numbers:
        rows = [
            (row["training_iteration"], value)
            for row in results._rows(number)
            if is_finite(value := look_up(row, metric))
        ]
        is_best = number == numbers[-1]
        figure.add_scatter(
            x=[iteration for iteration, _ in rows],
            y=[value for _, value in rows],
            mode="lines" if len(rows) > 1 else "markers",
            name=f"trial {number}{' (best)' if is_best else ''}",
            text=_describe(described.loc[number]),
            line={"width": 3} if is_best else {"width": 1},
            opacity=1.0 if is_best else 0.5,
        )
    figure.update_layout(
        title="Learning curves", xaxis_title="training_iteration", yaxis_title=metric
    )
    return figure


def plot_parallel_coordinates(
    results: ResultGrid,
    params: Sequence[str] | None = None,
    metric: str | None = None,
    mode: str | None = None,
) -> Any:
    """A line for each trial, through its hyperparameters to its metric."""
    graph = _import_plotly("plot_parallel_coordinates")
    table, metric, mode = _scored("plot_parallel_coordinates", results, metric, mode)
    chosen = _chosen("plot_parallel_coordinates", table, params)
    dimensions = [_dimension(str(name), list(chosen[name])) for name in chosen]
    scores = list(table[metric])
    figure = graph.Figure()
    figure.add_parcoords(
        dimensions=[*dimensions, {"label": metric, "values": scores}],
        line={"color": scores, "showscale": True, "reversescale": mode == "min"},
    )
    figure.update_layout(title="Hyperparameters")
    return figure


def plot_importance(
    results: ResultGrid,
    params: Sequence[str] | None = None,
    metric: str | None = None,
    mode: str | None = None,
) -> Any:
    """How much of the metric each hyperparameter explains, as shares of 1.

    Computed by Optuna from at least two trials: with fANOVA if scikit-learn is installed, else with
    PED-ANOVA.
    """
    graph = _import_plotly("plot_importance")
    table, metric, mode = _scored("plot_importance", results, metric, mode)
    chosen = _chosen("plot_importance", table, params)
    shares = _importances(chosen, list(table[metric]), mode)
    names = sorted(shares, key=lambda name: shares[name])
    figure = graph.Figure()
    figure.add_bar(
        x=[shares[name] for name in names],
        y=names,
        orientation="h",
        text=[f"{shares[name]:.2f}" for name in names],
    )
    figure.update_layout(title="Importance", xaxis_title=f"share of {metric}")
    return figure


def _scored(
    caller: str, results: ResultGrid, metric: str | None, mode: str | None
) -> tuple[pd.DataFrame, str, str]:
    """The trials with a finite value of the metric, indexed by their number."""
    if not hasattr(results, "get_dataframe"):
        raise TypeError(f"{caller}({results!r}): expected the ResultGrid that fit() returned.")
    metric, mode = results._objective(caller, metric, mode)
    table = results.get_dataframe()
    if metric in table:
        finite = table[metric].map(lambda v: isinstance(v, (int, float)) and math.isfinite(v))
        table = table[finite].astype({metric: float})
    if metric not in table or table.empty:
        raise ValueError(
            f"{caller}(metric={metric!r}): none of {len(results)} trial(s) has reported a finite "
            "number of that name; look at the names in get_dataframe()."
        )
    return table, metric, mode


def _parameters(table: pd.DataFrame) -> pd.DataFrame:
    columns = [name for name in table.columns if name.startswith(_CONFIG)]
    return table[columns].rename(columns=lambda name: name.removeprefix(_CONFIG))


def _chosen(caller: str, table: pd.DataFrame, params: Sequence[str] | None) -> pd.DataFrame:
    found = _parameters(table)
    if params is None:
        names = [name for name in found if found[name].map(repr).nunique() > 1]
    else:
        if isinstance(params, str):
            raise TypeError(f"{caller}(params={params!r}): expected a list of names.")
        names = list(params)
        for name in names:
            if name not in found:
                raise ValueError(
                    f"{caller}(params=[{name!r}]): no trial has such a hyperparameter; there are "
                    f"{', '.join(map(repr, found))}."
                )
    if not names:
        raise ValueError(
            f"{caller}(): no hyperparameter differs between the {len(table)} trial(s), so there is "
            "nothing to show."
        )
    return found[names]


def _dimension(name: str, values: list[Any]) -> dict[str, Any]:
    if all(map(is_finite, values)):
        if min(values) > 0 and max(values) / min(values) >= 100:
            powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))))
            ticks = [*powers, powers[-1] + 1]
            return {
                "label": name,
                "values": [math.log10(value) for value in values],
                "tickvals": ticks,
                "ticktext": [f"1e{power}" for power in ticks],
            }
        return {"label": name, "values": values}
    texts = sorted({str(value) for value in values})
    return {
        "label": name,
        "values": [texts.index(str(value)) for value in values],
        "tickvals": list(range(len(texts))),
        "ticktext": texts,
    }


def _importances(chosen: pd.DataFrame, scores: list[float], mode: str) -> dict[str, float]:
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "plot_importance needs Optuna, which is not installed: "
            "pip install 'lockstep-train[plots]'."
        ) from None
    if len(scores) < 2:
        raise ValueError(f"plot_importance(): {len(scores)} trial(s) are too few; run more.")
    with quiet_optuna():
        study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
        columns = {str(name): _column(list(chosen[name])) for name in chosen}
        for row, score in enumerate(scores):
            study.add_trial(
                optuna.create_trial(
                    value=score,
                    params={name: values[row] for name, (values, _) in columns.items()},
                    distributions={name: kind for name, (_, kind) in columns.items()},
                )
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one of the evaluators is marked experimental
            shares = optuna.importance.get_param_importances(study, evaluator=_evaluator(optuna))
    return {name: float(share) for name, share in shares.items()}


def _evaluator(optuna: Any) -> Any:
    try:
        import sklearn.ensemble  # noqa: F401  # is it installed?
    except ImportError:
        return optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.FanovaImportanceEvaluator(seed=0)


def _column(values: list[Any]) -> tuple[list[Any], Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if all(map(is_finite, values)) and min(values) < max(values):
        low, high = float(min(values)), float(max(values))
        log = low > 0 and high / low >= 100
        return [float(value) for value in values], FloatDistribution(low, high, log=log)
    texts = [str(value) for value in values]
    return texts, CategoricalDistribution(sorted(set(texts)))


def _describe(row: Any) -> str:
    return "<br>".join(f"{name}: {value}" for name, value in row.items())


def _import_plotly(caller: str) -> Any:
    try:
        import plotly.graph_objects
    except ImportError:
        raise ImportError(
            f"{caller} needs Plotly, which is not installed: pip install 'lockstep-train[plots]'."
        ) from None
    return plotly.graph_objects
