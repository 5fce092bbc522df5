"""What each page shows, as JSON: first everything, then what is new, a message each.

A view belongs to one page that is open. ``news()`` returns the messages since the last call; it
runs in any thread and takes the library's lock itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from lockstep.errors import StorageError
from lockstep.journal import parse_line
from lockstep.journal.lock import is_locked
from lockstep.journal.lookup import run_name
from lockstep.journal.records import damage_named
from lockstep.metrics import flatten, json_value
from lockstep.observe.environment import diff_of, environment_facts
from lockstep.observe.state import diagnosis, newest_attempt
from lockstep.run_layout import ENVIRONMENT_FILE, JOURNAL_FILE, MANIFEST
from lockstep.ui.library import Library
from lockstep.ui.logs import log_lines
from lockstep.ui.model import RunModel
from lockstep.ui.places import Place
from lockstep.ui.search import SearchModel, TrialModel
from lockstep.ui.series import Series, thin

__all__ = [
    "CompareView",
    "RunView",
    "RunsView",
    "SearchView",
    "View",
    "checkpoint_files",
    "diagnosis_text",
    "environment_at",
    "zoomed",
]

CHART_POINTS = 1200
SPARK_POINTS = 40
_MAX_APPENDED = 3000
"""After this number of points that were sent one by one, the chart is sent again, thinned."""
_ROWS_A_MESSAGE = 250
_SHOWN_FAILURES = 50
_MAX_SHOWN_METRICS = 60
_MAX_TEXT = 200
_MAX_COMPARED = 12
_MAX_PARENTS = 10


class View(ABC):
    """One open page."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def news(self) -> Iterator[dict[str, Any]]:
        """The messages since the last call."""
        messages = self._news()
        while True:
            # A message at a time: the first rows of many are shown while others are written.
            with self._library.lock:
                message = next(messages, None)
            if message is None:
                return
            yield message

    @abstractmethod
    def _news(self) -> Iterator[dict[str, Any]]:
        """The same; each message is made under the library's lock."""


# -------------------------------------------------------------------------------- all runs


class RunsView(View):
    """The table of runs and experiments."""

    def __init__(self, library: Library, metric: str | None = None) -> None:
        super().__init__(library)
        self._metric = metric
        self._sent: dict[str, tuple[int, str]] = {}
        self._said_complete = False

    def _news(self) -> Iterator[dict[str, Any]]:
        library = self._library
        changed: list[tuple[float, str]] = []
        for run_id, model in library.runs.items():
            if model.run or model.damage is not None:
                mark = (model.version, library.state_of(run_id, model))
                if self._sent.get(run_id) != mark:
                    self._sent[run_id] = mark
                    changed.append((-(_number(model.run.get("time")) or 0.0), run_id))
        for search_id, search in library.searches.items():
            if search.header or search.damage is not None:
                mark = (search.version, _search_state(search))
                if self._sent.get(search_id) != mark:
                    self._sent[search_id] = mark
                    changed.append((-(_number(search.header.get("time")) or 0.0), search_id))
        known = library.runs.keys() | library.searches.keys()
        gone = [one for one in self._sent if one not in known]
        for one in gone:
            del self._sent[one]
        complete = library.complete and not self._said_complete
        self._said_complete |= complete
        changed.sort()
        for start in range(0, max(len(changed), 1), _ROWS_A_MESSAGE):
            ids = [one for _, one in changed[start : start + _ROWS_A_MESSAGE]]
            if ids or gone or complete:
                rows = [row for one in ids if (row := self._row(one)) is not None]
                yield {"type": "runs", "rows": rows, "gone": gone, "complete": library.complete}

    def _row(self, one: str) -> dict[str, Any] | None:
        library = self._library
        if (model := library.runs.get(one)) is not None:
            return _run_row(library, one, model, self._metric)
        search = library.searches.get(one)
        return _search_row(library, one, search) if search is not None else None


def _run_row(library: Library, run_id: str, model: RunModel, metric: str | None) -> dict[str, Any]:
    """A run as a line of the table. What cannot be shown is damaged, and the others are shown."""
    row = {**_NO_RUN, "id": run_id, "name": model.place.name.rpartition("/")[2]}
    row["path"] = model.place.storage.uri
    try:
        with damage_named(JOURNAL_FILE):
            row.update(_known(library, run_id, model, metric))
    except StorageError as error:
        row.update(state="damaged", diagnosis=str(error))
    shown: dict[str, Any] = json_value(row)
    return shown


_NO_RUN: dict[str, Any] = {
    "kind": "run", "experiment": "", "note": None, "started": None, "ended": None, "updated": None,
    "attempts": 0, "workers": 0, "reports": 0, "metrics": {}, "best": None, "spark": None,
    "spent": {}, "diagnosis": None, "behind": None,
}  # fmt: skip


def _known(library: Library, run_id: str, model: RunModel, metric: str | None) -> dict[str, Any]:
    state, _, note = library.state_of(run_id, model).partition("; ")
    found: dict[str, Any] = {
        "state": state,
        "note": note or None,
        "updated": model.last_time or None,
        "attempts": model.attempt_count,
        "reports": model.rows,
        "diagnosis": model.damage,
        "behind": _behind(model),
    }
    if not model.run:
        return found
    header = model.run
    attempt = newest_attempt(model)
    best = model.best
    key = metric if metric in model.metrics else best.metric if best else None
    if key not in model.metrics:
        key = next(iter(model.metrics), None)
    return {
        **found,
        "name": run_name(header),
        "experiment": str(header.get("experiment_name", "")),
        "started": _number(header.get("time")),
        "ended": _number(model.end["time"]) if model.end else None,
        "workers": len(attempt["workers"]) if attempt else 0,
        "metrics": _last_metrics(model),
        "best": best and best._asdict(),
        "spark": {"metric": key, "values": _spark(model.metrics[key])} if key else None,
        "spent": model.spent(),
        "diagnosis": model.damage or diagnosis(model),
    }


def _behind(model: RunModel) -> float | None:
    """How much of the journal was read, while it is being read for the first time."""
    follower = model.follower
    return round(follower.read / follower.size, 3) if follower.behind and follower.size else None


def _last_metrics(model: RunModel) -> dict[str, Any]:
    flat = list(flatten(model.last).items())
    return {_short(str(key)): _shown(value) for key, value in flat[:_MAX_SHOWN_METRICS]}


def _shown(value: Any) -> Any:
    return _short(json_value(_beginning(value, iter(range(_MAX_TEXT)))))


def _beginning(value: Any, room: Iterator[int]) -> Any:
    """As many items, also nested ones, as there is room for: a text of all of them takes long."""
    if isinstance(value, dict):
        items = zip(value.items(), room, strict=False)
        return {key: _beginning(item, room) for (key, item), _ in items}
    if isinstance(value, list | tuple):
        return [_beginning(item, room) for item, _ in zip(value, room, strict=False)]
    return value


def _short(value: Any) -> Any:
    """A value as it may be sent for every run: a text is no longer than anybody would read."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…"
    return value if value is None or isinstance(value, float | int) else _short(repr(value))


def _spark(series: Series) -> list[Any]:
    if len(series.values) > 2 * SPARK_POINTS:
        return thin(series, SPARK_POINTS)["values"]
    # Most are short: ten thousand of them are sent at once.
    return [value if math.isfinite(value) else None for value in series.values]


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    with suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None


# --------------------------------------------------------------------------------- one run


class _Lines:
    """The lines of a page's charts, as they were sent: later only their new points are."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[int, int, int]] = {}

    def news(self, named: Iterable[tuple[str, Series]]) -> dict[str, Any]:
        """The new points of each series."""
        lines: dict[str, Any] = {}
        for name, series in named:
            identity, count, appended = self._sent.get(name, (0, 0, 0))
            if identity == id(series) and count == series.count:
                continue
            more = series.since(count) if identity == id(series) and count else None
            if more is not None and appended + len(more[0]) <= _MAX_APPENDED:
                steps, times, values = more
                lines[name] = {
                    "add": True,
                    "steps": list(steps),
                    "times": list(times),
                    "values": [value if math.isfinite(value) else None for value in values],
                }
                self._sent[name] = (id(series), series.count, appended + len(steps))
            else:
                lines[name] = {"add": False, **thin(series, CHART_POINTS)}
                self._sent[name] = (id(series), series.count, 0)
        return lines


class RunView(View):
    """The page of one run, and the page of its workers."""

    def __init__(self, library: Library, run_id: str) -> None:
        super().__init__(library)
        self._id = run_id
        self._mark: tuple[Any, ...] | None = None
        self._details: Any = None
        self._lines = _Lines()
        self._before: tuple[Any, dict[str, Series]] = None, {}

    def _news(self) -> Iterator[dict[str, Any]]:
        model = self._library.full(self._id)
        if model is None:
            if self._mark != (-1, ""):
                self._mark = (-1, "")
                yield {"type": "missing"}
            return
        state = self._library.state_of(self._id, model)
        before = self._of_parents(model)
        mark = (model.version, state, self._before[0])
        if mark == self._mark:
            return
        self._mark = mark
        row = _run_row(self._library, self._id, model, None)
        message: dict[str, Any] = {"type": "run", "run": row}
        details = {
            "attempts": [_attempt(record) for record in model.attempts.values()],
            "attempt_count": model.attempt_count,
            "failures": [_failure(record) for record in model.failures[-_SHOWN_FAILURES:]],
            "failure_count": model.failure_count,
            "stops": json_value(model.stops),
            "checkpoints": [_checkpoint(model, one) for one in model.checkpoints.values()],
            "saved": model.saved,
            "deleted": model.deleted,
            "config": json_value(model.run.get("config")),
            "score": json_value(model.run.get("checkpoint_config", {})),
            "trial": self._trial(),
            "parent": self._parent(model),
        }
        if details != self._details:
            self._details = details
            message["details"] = details
            message["environment"] = environment_at(model.place)
        message["late"] = json_value(_late(model))
        yield message
        if lines := self._lines.news((*_series(model), *before)):
            yield {"type": "lines", "lines": lines}

    def _parent(self, model: RunModel) -> dict[str, Any] | None:
        if model.parent is None:
            return None
        found = self._library.parent(model)
        name = run_name(found[1].run) if found else model.parent.trial_id
        return {"id": found and found[0], "name": name, "step": model.parent.step}

    def _of_parents(self, model: RunModel) -> list[tuple[str, Series]]:
        """What the runs before a fork had reported when it began, by metric."""
        parts: list[tuple[RunModel, float]] = []
        while (found := self._library.parent(model)) is not None and len(parts) < _MAX_PARENTS:
            assert model.parent is not None
            reports, model = model.parent.reports, found[1]
            parts.append((model, reports + model.forked_at))
        mark = [(id(parent), min(parent.rows + parent.forked_at, end)) for parent, end in parts]
        if self._before[0] != mark:
            series: dict[str, Series] = {}
            for parent, end in reversed(parts):
                for key, whole in parent.metrics.items():
                    series.setdefault(f"parent:{key}", Series(2 * CHART_POINTS)).extend(whole, end)
            self._before = mark, series
        return list(self._before[1].items())

    def _trial(self) -> dict[str, Any] | None:
        search, trial = self._library.trial(self._id)
        if search is None or trial is None:
            return None
        experiment = self._library.id_of(search.place)
        return {"experiment": experiment, "trial_id": trial.trial_id, "status": trial.status}


def _series(model: RunModel) -> Iterator[tuple[str, Series]]:
    for key, series in model.metrics.items():
        yield f"report:{key}", series
    for key, series in model.logs.items():
        yield f"log:{key}", series
    if model.data_wait.count:
        yield "data:waiting for data", model.data_wait
    samples = model.samples
    if samples is not None:
        for kind in ("memory", "cpu", "gpu", "gpu_memory"):
            for name, series in getattr(samples, kind).items():
                yield f"{kind}:{name}", series


def _attempt(record: dict[str, Any]) -> dict[str, Any]:
    workers = [
        {key: worker[key] for key in ("rank", "pid", "hostname")}
        for worker in record.get("workers", [])
    ]
    return {
        "attempt": json_value(record["attempt"]),
        "time": _number(record.get("time")),
        "warmup": _number(record.get("warmup_time")),
        "size": record.get("size") or len(workers),
        "workers": workers,
    }


def _failure(record: dict[str, Any]) -> dict[str, Any]:
    errors = [
        {"rank": one["rank"], "text": str(one["error"].get("text") or one["error"].get("message"))}
        for one in record["errors"]
    ]
    fields = ("attempt", "message", "retry", "time")
    return {**{key: json_value(record.get(key)) for key in fields}, "errors": errors}


def _checkpoint(model: RunModel, record: dict[str, Any]) -> dict[str, Any]:
    fields = ("id", "name", "index", "score", "timestamp", "uploaded")
    shown: dict[str, Any] = {key: json_value(record.get(key)) for key in fields}
    name = record["name"]
    shown["path"] = model.place.storage.uri.rstrip("/") + f"/{name}" if record["uploaded"] else name
    return shown


def _late(model: RunModel) -> list[dict[str, Any]]:
    return [
        {"first": first, "last": last, "seconds": [s / (last - first + 1) for s in seconds]}
        for first, last, seconds in model.late.columns
    ]


def environment_at(place: Place) -> dict[str, Any] | None:
    """What a run was started with, from its directory or its experiment's, inside the root."""
    for where in (place, place.parent):
        if where is None:
            continue
        try:
            with damage_named(ENVIRONMENT_FILE):
                environment = parse_line(where.read(ENVIRONMENT_FILE))
                facts = [list(pair) for pair in environment_facts(environment)]
                return {"facts": facts, "diff": diff_of(environment)}
        except (OSError, StorageError):
            continue
    return None


def zoomed(
    library: Library, run_id: str, name: str, *, by_time: bool, low: float | None,
    high: float | None, ranks: bool,
) -> list[dict[str, Any]] | None:  # fmt: skip
    """The lines of one chart between two x, at the chart's own resolution; of every rank."""
    with library.lock:
        model = library.full(run_id)
        if model is None:
            return None
        kind, _, key = name.partition(":")
        if ranks and kind in ("report", "log"):
            found = list(enumerate(model.ranks.get(key, [])))
        else:
            found = [(-1, series) for other, series in _series(model) if other == name]
        return [
            {"rank": rank, **thin(series, CHART_POINTS, by_time=by_time, low=low, high=high)}
            for rank, series in found
        ]


def checkpoint_files(library: Library, run_id: str, checkpoint: int) -> list[dict[str, Any]] | None:
    """The files of a checkpoint, with their sizes. None of them is opened."""
    with library.lock:
        model = library.full(run_id)
        record = model.checkpoints.get(checkpoint) if model else None
        if model is None or record is None or not record["uploaded"]:
            return None
        try:
            place = model.place.child(str(record["name"]))
        except ValueError:  # no name that lockstep gives
            return None
    found: list[dict[str, Any]] = []
    if not place.is_inside():
        return found
    pending = [(place, "")]
    for folder, prefix in pending:
        for name, is_directory in folder.entries():
            if is_directory and len(pending) < 100:
                pending.append((folder.child(name), f"{prefix}{name}/"))
            elif name != MANIFEST and (version := folder.version(name)) and len(found) < 500:
                found.append({"name": prefix + name, "size": version.size})
    return found


def diagnosis_text(library: Library, run_id: str) -> str | None:
    """Everything that helps to find out what went wrong, as text for a colleague or an issue."""
    with library.lock:
        model = library.full(run_id)
        if model is None:
            return None
        row = _run_row(library, run_id, model, None)
        lines = [
            f"run:        {row['name']} in {row['experiment']}",
            f"state:      {row['state']}" + (f"; {row['note']}" if row["note"] else ""),
            f"path:       {row['path']}",
            f"attempts:   {row['attempts']}, {row['workers']} workers in the last one",
            f"reports:    {row['reports']}",
        ]
        if row["metrics"]:
            values = " ".join(f"{key}={value}" for key, value in row["metrics"].items())
            lines.append(f"metrics:    {values}")
        if row["diagnosis"]:
            lines.append(f"diagnosis:  {row['diagnosis']}")
        if spent := row["spent"]:
            largest = sorted(spent.items(), key=lambda item: -item[1])
            lines.append("time:       " + ", ".join(f"{key} {s:.1f} s" for key, s in largest))
        for failure in map(_failure, model.failures):
            lines += ["", f"attempt {failure['attempt']}: {failure['message']}"]
            for error in failure["errors"]:
                lines += [f"--- rank {error['rank']} ---", error["text"].rstrip()]
        place = model.place
        ranks = sorted({e["rank"] for failure in model.failures for e in failure["errors"]})
    for rank in ranks[:8]:
        if tail := log_lines(place, rank, last=30):
            lines += ["", f"the end of rank {rank}'s log:", *tail]
    if environment := environment_at(place):
        lines += ["", *(f"{label + ':':<12}{text}" for label, text in environment["facts"])]
    return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------- experiments


class SearchView(View):
    """The page of an experiment: its trials."""

    def __init__(self, library: Library, search_id: str) -> None:
        super().__init__(library)
        self._id = search_id
        self._seen: tuple[SearchModel, int, str] | None = None
        self._is_missing = False

    def _news(self) -> Iterator[dict[str, Any]]:
        search = self._library.searches.get(self._id)
        if search is None:
            if not self._is_missing:
                self._is_missing = True
                yield {"type": "missing"}
            return
        state = _search_state(search)
        since = self._seen[1] if self._seen is not None and self._seen[0] is search else -1
        if self._seen == (search, search.version, state):
            return
        trials = [trial for trial in search.trials.values() if trial.version > since]
        self._seen = (search, search.version, state)
        head = _search_row(self._library, self._id, search)
        for start in range(0, max(len(trials), 1), _ROWS_A_MESSAGE):
            part = trials[start : start + _ROWS_A_MESSAGE]
            rows = [json_value(_trial_row(self._library, search, trial)) for trial in part]
            yield {"type": "experiment", "experiment": head, "trials": rows}


def _trial_row(library: Library, search: SearchModel, trial: TrialModel) -> dict[str, Any]:
    model = trial.model
    best = model.best if model else None
    status = trial.status
    if model is not None and model.end is not None and status not in ("TERMINATED", "ERROR"):
        status = {"finished": "TERMINATED", "failed": "ERROR"}.get(model.state, status)
    key = search.metric or (best.metric if best else None)
    series = model.metrics.get(key) if model and key else None
    return {
        "id": library.id_of(search.place.child(trial.directory)),
        "trial_id": trial.trial_id,
        "index": trial.index,
        "status": status,
        "by": trial.by,
        "config": {
            _short(str(key)): _shown(value)
            for key, value in list(trial.config.items())[:_MAX_SHOWN_METRICS]
        },
        "metrics": _last_metrics(model) if model else {},
        "score": search.score(trial),
        "reports": model.rows if model else 0,
        "started": trial.started,
        "ended": trial.ended,
        "error": trial.error,
        "spark": _spark(series) if series else [],
    }


def _search_state(search: SearchModel) -> str:
    if search.damage is not None:
        return "damaged"
    if search.state == "finished":
        return search.state
    if search.place.root.storage.is_local:
        running = is_locked(search.place.storage.path(search.journal))
        return "running" if running else search.state
    return search.state


def _search_row(library: Library, search_id: str, search: SearchModel) -> dict[str, Any]:
    """An experiment as a line of the table."""
    best = search.best()
    errors = [t for t in search.trials.values() if t.error]
    more = f" (and {len(errors) - 1} more)" if errors[1:] else ""
    score = search.score(best) if best else None
    models = [trial.model for trial in search.trials.values() if trial.model]
    row = {
        "id": search_id,
        "kind": "experiment",
        "name": str(search.header.get("name", search.place.name.rpartition("/")[2])),
        "experiment": str(search.header.get("name", "")),
        "state": _search_state(search),
        "note": search.damage,
        "started": _number(search.header.get("time")),
        "ended": search.ended,
        "trials": dict(Counter(trial.status for trial in search.trials.values())),
        "stopped": sum(trial.by == "scheduler" for trial in search.trials.values()),
        "planned": json_value(search.header.get("num_trials")),
        "metric": search.metric,
        "mode": search.mode,
        "reports": sum(model.rows for model in models),
        "read": len(models),
        "best": {"metric": search.metric, "value": score, "trial": best.trial_id} if best else None,
        "best_id": library.id_of(search.place.child(best.directory)) if best else None,
        "diagnosis": f"trial {errors[0].trial_id}: {errors[0].error}{more}" if errors else None,
        "path": search.place.storage.uri,
    }
    shown: dict[str, Any] = json_value(row)
    return shown


# --------------------------------------------------------------------------------- compare


class CompareView(View):
    """Several runs over each other."""

    def __init__(self, library: Library, ids: list[str]) -> None:
        super().__init__(library)
        self._ids = ids[:_MAX_COMPARED]
        self._marks: dict[str, tuple[int, str] | None] = {}
        self._lines = {run_id: _Lines() for run_id in self._ids}

    def _news(self) -> Iterator[dict[str, Any]]:
        for run_id in self._ids:
            model = self._library.full(run_id)
            state = self._library.state_of(run_id, model) if model else ""
            mark = (model.version, state) if model else None
            if run_id in self._marks and self._marks[run_id] == mark:
                continue
            first = run_id not in self._marks
            self._marks[run_id] = mark
            if model is None:
                yield {"type": "missing", "id": run_id}
                continue
            row = _run_row(self._library, run_id, model, None)
            message: dict[str, Any] = {"type": "run", "run": row}
            if first:
                message["config"] = _own_config(model)
                message["environment"] = environment_at(model.place)
            yield message
            charts = ((name, series) for name, series in _series(model) if name.startswith("rep"))
            if lines := self._lines[run_id].news(charts):
                yield {"type": "lines", "id": run_id, "lines": lines}


def _own_config(model: RunModel) -> dict[str, Any]:
    """What the run's function was given, flat."""
    config = model.run.get("config")
    if isinstance(config, dict) and "trial" not in model.run:
        config = config.get("train_loop_config") or config
    flat = flatten(config) if isinstance(config, dict) else {}
    return {key: json_value(value) for key, value in flat.items()}
