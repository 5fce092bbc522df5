"""The reader of the dashboard: journals are followed, thinned and kept in bounded memory."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lockstep.journal.records import RunRecords
from lockstep.ledger import read_ledger
from lockstep.storage import open_storage
from lockstep.ui import follow as follow_module
from lockstep.ui import library as library_module
from lockstep.ui.follow import Follower
from lockstep.ui.library import Library
from lockstep.ui.logs import LogTail, log_ranks, search_log
from lockstep.ui.model import RunModel
from lockstep.ui.places import Place, Root
from lockstep.ui.search import SearchModel
from lockstep.ui.series import Series, SeriesSet, thin
from lockstep.ui.views import CompareView, RunsView, RunView, SearchView, diagnosis_text, zoomed
from tests.ui.journals import STARTED, MadeRun, held, made_experiment, workers


def root_of(path: Path) -> Root:
    return Root(open_storage(str(path)), str(path))


def goodput_of(run: MadeRun) -> dict[str, float]:
    """Where the time went by ``result.goodput``, as seconds of wall time."""
    goodput = read_ledger(RunRecords(open_storage(str(run.path)))).goodput
    return {name: share * goodput.wall_s for name, share in goodput.items() if share > 0}


def read_all(library: Library) -> None:
    """Everything that the library's thread would do until there is nothing more to read."""
    while library._round():
        pass


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path)


def model_of(run: MadeRun, *, full: bool = True) -> RunModel:
    place = root_of(run.path.parents[1]).place.child(run.path.parent.name).child(run.path.name)
    model = RunModel(place, full=full)
    while model.follow() and model.follower.behind:
        pass
    return model


# ---------------------------------------------------------------------------------- following


def test_a_line_is_read_once_and_only_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    follower = Follower(root_of(tmp_path).place, "lines")
    assert follower.more() == []
    file.write_bytes(b"one\ntw")
    assert follower.more() == [b"one"]
    assert follower.more() == []
    with file.open("ab") as more:
        more.write(b"o\nthree\n")
    assert follower.more() == [b"two", b"three"]
    assert (follower.read, follower.behind) == (14, False)


def test_half_a_line_that_a_new_driver_cuts_off_is_never_seen(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\nhal")
    follower = Follower(root_of(tmp_path).place, "lines")
    assert follower.more() == [b"one"]
    os.truncate(file, 4)
    assert follower.more() == []
    with file.open("ab") as more:
        more.write(b"two\n")
    assert follower.more() == [b"two"]


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    follower = Follower(root_of(tmp_path).place, "lines")
    follower.more()
    (tmp_path / "new").write_bytes(b"other\nlines\n")
    os.replace(tmp_path / "new", file)
    assert follower.more() is None


def test_a_line_longer_than_a_block_is_read(tmp_path: Path) -> None:
    long = b"x" * (follow_module._BLOCK * 3)
    (tmp_path / "lines").write_bytes(b"one\n" + long + b"\ntwo\n" + long)
    follower = Follower(root_of(tmp_path).place, "lines")
    assert follower.more() == [b"one"]
    assert follower.more() == [long, b"two"]
    assert follower.more() == []
    assert not follower.behind  # half a line is not looked at again and again


def test_a_line_that_is_too_long_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "_BLOCK", 16)
    monkeypatch.setattr(follow_module, "MAX_LINE", 64)
    (tmp_path / "lines").write_bytes(b"one\n" + b"x" * 1000 + b"\ntwo\n" + b"y" * 100)
    follower = Follower(root_of(tmp_path).place, "lines")
    lines: list[bytes] = []
    for _ in range(100):
        lines += follower.more() or []
    assert lines == [b"one", b"two"]
    assert not follower.behind
    assert "lines is longer than" in (follower.damage or "")
    with (tmp_path / "lines").open("ab") as more:
        more.write(b"y\nthree\n")
    assert follower.more() == [b"three"]


def test_a_journal_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> bytes:
        raise PermissionError(13, "Permission denied", "journal.jsonl")

    with monkeypatch.context() as patch:
        patch.setattr(Place, "read", refused)
        library = Library([root_of(tmp_path)])
        read_all(library)  # ends: what cannot be read is not tried again at once
        (message,) = RunsView(library).news()
    (row,) = message["rows"]
    assert row["state"] == "damaged"
    assert "Permission denied" in row["diagnosis"]


def test_a_journal_grows_and_is_not_read_again(
    run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.report({"loss": 1.0})
    model = model_of(run)
    starts: list[int] = []
    read = Place.read

    def noted(self: Place, name: str, start: int = 0, *more: Any) -> bytes:
        starts.append(start)
        return read(self, name, start, *more)

    monkeypatch.setattr(Place, "read", noted)
    size = (run.path / "journal.jsonl").stat().st_size
    run.report({"loss": 0.5})
    assert model.follow()
    assert starts == [size]
    assert list(model.metrics["loss"].values) == [1.0, 0.5]
    assert not model.follow()


# ---------------------------------------------------------------------------------- thinning


def test_a_long_series_keeps_its_extremes_in_bounded_memory() -> None:
    series = Series(1024)
    for step in range(100_000):
        series.add(step, float(step), math.sin(step / 1000))
    series.add(100_000, 0.0, 77.0)
    for step in range(100_001, 200_000):
        series.add(step, float(step), math.sin(step / 1000))
    assert series.count == 200_000
    assert len(series.values) < 1024
    assert max(series.values) == 77.0
    assert series.steps[series.values.index(77.0)] == 100_000
    assert list(series.steps) == sorted(series.steps)
    assert series.steps[-1] == 199_999


def test_a_chart_has_the_extremes_of_each_part_and_both_ends() -> None:
    series = Series(1 << 20)
    for step in range(50_000):
        series.add(step, step * 2.0, 9.0 if step == 31_337 else step % 7)
    shown = thin(series, 500)
    assert 200 < len(shown["steps"]) <= 504
    assert 9.0 in shown["values"]
    assert (shown["steps"][0], shown["steps"][-1]) == (0.0, 49_999.0)
    part = thin(series, 500, by_time=True, low=62_600.0, high=62_700.0)
    assert part["values"].count(9.0) == 1
    assert part["steps"][0] == 31_299.0  # one beyond the edge
    assert len(part["steps"]) == 53


def test_what_is_not_finite_is_a_gap() -> None:
    series = Series(64)
    for step, value in enumerate([1.0, math.nan, math.inf, 2.0]):
        series.add(step, 0.0, value)
    assert thin(series, 100)["values"] == [1.0, None, None, 2.0]
    for step in range(4, 200):
        series.add(step, 0.0, math.nan if step == 100 else 1.0)
    assert any(map(math.isnan, series.values))


@pytest.mark.parametrize("value", [0.0, -3.5])
def test_equal_values_keep_the_length_of_the_line(value: float) -> None:
    series = Series(64)
    for step in range(1000):
        series.add(step, 0.0, value)
    assert (series.steps[0], series.steps[-1]) == (0.0, 999.0)
    assert set(series.values) == {value}


def test_new_points_are_told_from_those_that_were_sent() -> None:
    series = Series(8)
    for step in range(5):
        series.add(step, 0.0, step)
    more = series.since(3)
    assert more is not None
    assert list(more[0]) == [3.0, 4.0]
    for step in range(5, 9):
        series.add(step, 0.0, step)
    assert series.since(3) is None
    assert series.since(99) is None


def test_many_series_share_a_bounded_number_of_points() -> None:
    made = SeriesSet(64, 256, 10)
    series = [made.new() for _ in range(3)]
    for step in range(1000):
        for one in series:
            assert one is not None
            one.add(step, 0.0, 50.0 if step == 500 else step % 3)
    more = [made.new() for _ in range(8)]
    assert more.count(None) == 1
    for step in range(1000):
        for one in more[:-1]:
            assert one is not None
            one.add(step, 0.0, step % 3)
    kept = [one for one in (*series, *more) if one is not None]
    assert sum(len(one.values) for one in kept) <= 256
    assert [max(one.values) for one in kept[:3]] == [50.0] * 3
    assert series[0] is not None
    assert series[0].since(999) is None  # it was thinned: a page gets it again


# -------------------------------------------------------------------------------------- models


def test_a_run_with_everything(tmp_path: Path) -> None:
    run = MadeRun(tmp_path, ranks=2)
    run.report({"loss": 1.0, "val": {"acc": 0.5}, "note": "x", "flag": True}, busy=[0.5, 0.75])
    run.event("log", rank=1, attempt=1, rows=[{"step": 3, "time": 1.0, "metrics": {"grad": 2.0}}])
    run.event("log", rank=0, attempt=1, rows=[{"step": 3, "time": 1.0, "metrics": {"grad": 1.0}}])
    run.report({"loss": math.nan, "val": {"acc": 0.75}}, busy=[1.0, 0.5], waits=[{"data": 0.5}, {}])
    about = {"uploaded": True, "metrics": {}, "timestamp": 1, "iteration": 1}
    run.event("checkpoint", id=0, name="checkpoint_000000", index=1, score=None, **about)
    run.event("checkpoint", id=1, name="checkpoint_000001", index=2, score=1.0, **about)
    run.event("delete", id=0, name="checkpoint_000000")
    model = model_of(run)
    assert sorted(model.metrics) == ["loss", "val/acc"]
    assert list(model.metrics["val/acc"].values) == [0.5, 0.75]
    assert list(model.logs["grad"].values) == [1.0]
    assert [list(s.values) for s in model.ranks["grad"]] == [[1.0], [2.0]]
    assert [seconds for _, _, seconds in model.late.columns] == [[0.0, 0.25], [0.5, 0.0]]
    assert model.spent() == pytest.approx(dict(goodput_of(run)))
    assert list(model.checkpoints) == [1]
    assert model.deleted == 1
    assert model.state == "unfinished"
    run.end("failed", best=["val/acc", 0.75, 2])
    model.follow()
    assert model.state == "failed"
    assert model.best is not None
    assert model.best.value == 0.75
    run.event("restore", restored=5.0, config={}, checkpoint_config={})
    model.follow()
    assert model.state == "unfinished"


def test_the_picture_of_late_ranks_is_bounded(run: MadeRun) -> None:
    model = model_of(run)
    for index in range(1, 100_001):
        model.late.add(float(index), [0.0, 1.0 if index == 50_000 else 0.5])
    assert len(model.late.columns) < 512
    assert sum(sum(seconds) for _, _, seconds in model.late.columns) == pytest.approx(50_000.5)
    assert (model.late.columns[0][0], model.late.columns[-1][1]) == (1.0, 100_000.0)


@pytest.mark.parametrize(
    "line",
    [
        b"not json at all",
        b"[1, 2]",
        b'{"event":"report","index":"x"}',
        b'{"event":"attempt"}',
        b'{"event":"run","version":99}',
        b'{"event":"log","rank":0,"rows":7}',
    ],
)
def test_a_damaged_line_is_one_sentence(run: MadeRun, line: bytes) -> None:
    run.report({"loss": 1.0})
    with (run.path / "journal.jsonl").open("ab") as file:
        file.write(line + b"\n")
    model = model_of(run)
    assert model.damage is not None
    assert "journal.jsonl" in model.damage
    assert list(model.metrics["loss"].values) == [1.0]


def whole_run(root: Path) -> MadeRun:
    """A run with every event, and every field that a page shows."""
    run = MadeRun(root, ranks=2)
    run.report({"loss": 1.0, "val": {"acc": 0.5}}, busy=[0.5, 0.75], data_wait=[0.1, 0.2])
    run.event("log", rank=0, attempt=1, rows=[{"step": 3, "time": 1.0, "metrics": {"grad": 1.0}}])
    saved = {"score": 1.0, "uploaded": True, "timestamp": 1.0, "iteration": 1, "metrics": {}}
    run.event("checkpoint", id=0, name="checkpoint_000000", index=1, **saved)
    run.event("delete", id=0, name="checkpoint_000000")
    error = {"type": "ValueError", "message": "no", "text": "Traceback\nValueError: no"}
    run.event(
        "failure", attempt=1, message="Rank 0 failed.", errors=[{"rank": 0, "error": error}],
        retry=True, time=STARTED + 3,
    )  # fmt: skip
    run.event("restore", restored=STARTED + 5, config={}, checkpoint_config={})
    worker = {"rank": 0, "pid": 4_194_305, "hostname": "node", "started": 1}
    run.event("attempt", attempt=2, workers=[worker], iteration=0, time=STARTED + 6)
    run.event("attempt_stopped", attempt=2, kind="resize", next_size=3, time=STARTED + 7)
    run.end("failed", best=["loss", 1.0, 1])
    return run


def test_where_the_time_went_is_what_the_ledger_says(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    model = model_of(run)
    assert model.spent() == pytest.approx(goodput_of(run))
    assert model.spent()["lost"] > 0


def test_no_value_of_a_journal_stops_a_page(tmp_path: Path) -> None:
    """Each value of each line is missing, or of another kind, or no number that JSON has."""
    whole = whole_run(tmp_path / "whole")
    text = (whole.path / "journal.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    wrong: tuple[Any, ...] = (
        ...,
        None,
        math.nan,
        -math.inf,
        10**400,
        "x",
        True,
        [],
        {"a": [1]},
        [math.nan],
    )
    broken: list[list[dict[str, Any]]] = []
    for number, line in enumerate(lines):
        for key in line:
            for value in wrong:
                other = {name: value if name == key else one for name, one in line.items()}
                if value is ...:
                    del other[key]
                broken.append([*lines[:number], other, *lines[number + 1 :]])
    for number, records in enumerate(broken):
        place = tmp_path / "root" / f"r{number}" / "run"
        place.mkdir(parents=True)
        text = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in records)
        (place / "journal.jsonl").write_text(text)
    library = Library([root_of(tmp_path / "root")])
    read_all(library)
    rows = [row for message in RunsView(library).news() for row in message["rows"]]
    json.dumps(rows, allow_nan=False).encode()
    assert len(rows) == len(broken)
    assert {row["state"] for row in rows} >= {"failed", "damaged"}
    for row in rows:
        for view in (RunView(library, row["id"]), CompareView(library, [row["id"]])):
            for message in view.news():
                json.dumps(message, allow_nan=False).encode()
        assert diagnosis_text(library, row["id"])


def test_no_value_of_an_experiment_stops_a_page(tmp_path: Path) -> None:
    text = (made_experiment(tmp_path / "whole", 1) / "experiment.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    number = 0
    for at, line in enumerate(lines):
        for key in line:
            for value in (..., None, math.nan, 10**400, "x", [], {"a": 1}, [7]):
                other = {name: value if name == key else one for name, one in line.items()}
                if value is ...:
                    del other[key]
                place = tmp_path / "root" / f"s{number}"
                shutil.copytree(tmp_path / "whole" / "search", place)
                records = [*lines[:at], other, *lines[at + 1 :]]
                changed = "".join(json.dumps(one) + "\n" for one in records)
                (place / "experiment.jsonl").write_text(changed)
                number += 1
    library = Library([root_of(tmp_path / "root")])
    read_all(library)
    assert library.searches
    views = [RunsView(library), *(SearchView(library, one) for one in library.searches)]
    for view in views:
        for message in view.news():
            json.dumps(message, allow_nan=False).encode()


def test_a_run_of_any_size_takes_a_bounded_part_of_memory(run: MadeRun) -> None:
    run.ranks = 70
    model, light = model_of(run), model_of(run, full=False)
    for index in range(3):
        run.report({f"m{number}": float(index) for number in range(520)})
    for number in range(1000):
        about: dict[str, Any] = {"score": None, "iteration": 1, "metrics": {}, "timestamp": 0}
        run.event("checkpoint", id=number, name=f"c{number}", index=1, **about)
        run.event("failure", attempt=1, message="no", errors=[], retry=True, time=STARTED)
        run.event("attempt", attempt=2 + number, workers=workers(20), iteration=1, time=STARTED)
    for one in (model, light):
        while one.follow() or one.follower.behind:
            pass
        assert one.damage is None
        assert (one.attempt_count, one.failure_count, one.saved) == (1001, 1000, 1000)
        assert len(one.attempts) == len(one.failures) == len(one.checkpoints) <= 500
        assert sum(len(record.get("workers", ())) for record in one.attempts.values()) == 20
    ranks = [series for of in model.ranks.values() for series in of]
    assert len(ranks) == 4096
    assert all(model.ranks.values())
    assert len(model.metrics) == 500
    assert len(light.metrics) == 32


def test_samples_become_memory_and_load(run: MadeRun) -> None:
    def sample(time: float, host: str, ranks: list[int], **values: Any) -> dict[str, Any]:
        return {"time": time, "attempt": 1, "host": host, "ranks": ranks, **values}

    samples = [
        sample(10.0, "a", [0], cpu=[1.0], memory=[100], gpu=[[50, 10, 20]]),
        sample(10.5, "b", [1], cpu=[4.0], memory=[300], gpu=[[70, 12, 20]]),
        sample(12.0, "a", [0], cpu=[2.0], memory=[200], gpu=[[60, None, 20], [None, 11, 20]]),
        sample(12.5, "b", [1], cpu=[8.0], memory=[400]),
        {**sample(14.0, "a", [0], cpu=[0.5], memory=[500]), "attempt": 2},
        sample(15.0, "a", [], cpu=[], memory=[]),
        sample(16.0, "a", [100_000], cpu=[1.0], memory=[1]),
    ]
    text = "".join(json.dumps(one) + "\n" for one in samples)
    (run.path / "resources.jsonl").write_text(text)
    found = model_of(run).samples
    assert found is not None

    def values(of: dict[str, Series]) -> dict[str, list[float]]:
        return {name: list(series.values) for name, series in of.items()}

    assert values(found.memory) == {"0": [100.0, 200.0, 500.0], "1": [300.0, 400.0]}
    assert values(found.cpu) == {"0": [50.0], "1": [200.0]}
    assert values(found.gpu) == {"a:0": [50.0, 60.0], "b:0": [70.0]}
    assert values(found.gpu_memory) == {"a:0": [10.0], "b:0": [12.0], "a:1": [11.0]}


def test_samples_that_were_replaced_are_read_again(run: MadeRun) -> None:
    sample = {"time": 10.0, "attempt": 1, "host": "a", "ranks": [0], "cpu": [1.0], "memory": [100]}
    path = run.path / "resources.jsonl"
    path.write_text(3 * (json.dumps(sample) + "\n"))
    model = model_of(run)
    other = run.path / "other"
    other.write_text(5 * (json.dumps({**sample, "memory": [7]}) + "\n"))
    other.replace(path)
    assert model.follow()
    assert model.samples is not None
    assert [list(s.values) for s in model.samples.memory.values()] == [5 * [7.0]]
    path.unlink()
    assert model.follow()
    assert not model.samples.memory
    assert not model.follow()


def test_a_metric_without_room_for_its_ranks_does_not_stop_the_others(run: MadeRun) -> None:
    run.ranks = 2
    model = model_of(run)
    model._rank_series = SeriesSet(10, 20, 2)
    run.report({"known": 1.0})
    run.report({"late": 2.0, "known": 2.0})
    assert model.follow()
    assert [list(s.values) for s in model.ranks["known"]] == [[1.0, 2.0], [1.0, 2.0]]
    assert list(model.ranks) == ["known"]


def test_long_names_and_long_lists_are_shown_in_part(tmp_path: Path, run: MadeRun) -> None:
    deep = [[[0.5] * 1000] * 30, {"a": [1] * 500}]
    run.report({"n" * 1000: 1.0, "list": [0.25] * 50_000, "deep": deep, "short": [1, [2]]})
    library = Library([root_of(tmp_path)])
    read_all(library)
    [row] = [row for message in RunsView(library).news() for row in message["rows"]]
    shown = row["metrics"]
    assert shown["n" * 199 + "…"] == 1.0
    assert shown["list"] == repr([0.25] * 200)[:199] + "…"
    assert shown["deep"] == repr(deep)[:199] + "…"
    assert shown["short"] == "[1, [2]]"


def test_trials_come_from_the_experiment_and_their_runs(tmp_path: Path) -> None:
    made_experiment(tmp_path, 6)
    library = Library([root_of(tmp_path)])
    read_all(library)
    (search,) = library.searches.values()
    assert isinstance(search, SearchModel)
    assert len(search.trials) == 6
    assert library.runs == {}
    best = search.best()
    assert best is not None
    assert search.score(best) == min(filter(None, map(search.score, search.trials.values())))
    view = SearchView(library, "0:search")
    (message,) = view.news()
    assert [t["by"] for t in message["trials"]] == ["scheduler", None, None] * 2
    assert message["experiment"]["stopped"] == 2
    assert message["experiment"]["best"]["trial"] == best.trial_id
    assert list(view.news()) == []


# --------------------------------------------------------------------------------------- views


def test_what_is_reported_is_pushed_once(tmp_path: Path, run: MadeRun) -> None:
    run.report({"loss": 1.0})
    library = Library([root_of(tmp_path)])
    read_all(library)
    runs, page = RunsView(library), RunView(library, run.id)
    (message,) = runs.news()
    (row,) = message["rows"]
    assert (row["id"], row["reports"], row["metrics"]) == (run.id, 1, {"loss": 1.0})
    head, lines = page.news()
    assert head["details"]["config"] == {"train_loop_config": {"lr": 0.1}}
    assert lines["lines"]["report:loss"]["values"] == [1.0]
    assert list(runs.news()) == list(page.news()) == []
    run.report({"loss": 0.5})
    called: list[int] = []
    with library.listening(lambda: called.append(1)):
        while not (messages := list(runs.news())):
            library._round()
    assert called
    assert messages[0]["rows"][0]["reports"] == 2
    while len(news := list(page.news())) < 2:
        library._round()
    head, lines = news
    assert "details" not in head
    assert lines["lines"]["report:loss"] == {
        "add": True,
        "steps": [2.0],
        "times": [lines["lines"]["report:loss"]["times"][0]],
        "values": [0.5],
    }


def test_what_was_deleted_leaves_the_table_and_may_come_again(
    tmp_path: Path, run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "ENDED_POLL_S", 0.0)
    made_experiment(tmp_path, 2)
    library = Library([root_of(tmp_path)])
    read_all(library)
    view = RunsView(library)
    assert len([row for message in view.news() for row in message["rows"]]) == 2
    for path in (run.path.parent, tmp_path / "search"):
        shutil.rmtree(path)
    gone: set[str] = set()
    while gone != {run.id, "0:search"}:
        library._round()
        gone |= {one for message in view.news() for one in message["gone"]}
    assert not library.runs
    assert not library.searches
    again = MadeRun(tmp_path)
    rows: list[str] = []
    while not rows:
        library._listed = 0.0
        library._round()
        rows = [row["id"] for message in view.news() for row in message["rows"]]
    assert rows == [again.id]


def test_every_message_is_json_that_a_browser_reads(tmp_path: Path, run: MadeRun) -> None:
    run.report({"loss": math.inf, "a": -math.inf, "b": math.nan, "\ud800": 1.0})
    run.report({"loss": 1.0}, busy=[1e308, -1e308])
    run.event(
        "failure",
        attempt=1,
        message="bad",
        errors=[{"rank": 0, "error": {"text": "T\n"}}],
        retry=False,
        time=math.nan,
    )
    run.end("failed", best=["loss", math.inf, 1])
    library = Library([root_of(tmp_path)])
    read_all(library)
    views = [RunsView(library), RunView(library, run.id), CompareView(library, [run.id, "0:x"])]
    for view in views:
        for message in view.news():
            json.dumps(message, allow_nan=False).encode()


def test_the_chart_of_a_fork_begins_with_its_parents(tmp_path: Path) -> None:
    first = MadeRun(tmp_path, "first", trial_id="first_00000")
    first.rows_of([1.0, 2.0, 3.0, 4.0])
    parent = {"path": "/gone", "trial_id": "first_00000", "step": 3, "reports": 3}
    second = MadeRun(tmp_path, "second", trial_id="second_00000", parent=parent)
    second.rows_of([30.0, 40.0, 50.0])
    parent = {"path": "/gone", "trial_id": "second_00000", "step": 5, "reports": 2}
    third = MadeRun(tmp_path, "third", parent=parent)
    third.rows_of([500.0])
    orphan = MadeRun(tmp_path, "orphan", parent={**parent, "trial_id": "gone_00000"})
    orphan.rows_of([1.0])
    library = Library([root_of(tmp_path)])
    read_all(library)

    def lines(run: MadeRun) -> tuple[Any, dict[str, Any]]:
        page, charts = RunView(library, run.id).news()
        found = {name: line["values"] for name, line in charts["lines"].items()}
        found["steps"] = charts["lines"]["report:loss"]["steps"]
        return page["details"]["parent"], found

    about, shown = lines(third)
    assert (about["id"], about["step"]) == (second.id, 5)
    assert shown["parent:loss"] == [1.0, 2.0, 3.0, 30.0, 40.0]
    assert (shown["steps"], shown["report:loss"]) == ([6.0], [500.0])
    about, shown = lines(orphan)
    assert about == {"id": None, "name": "gone_00000", "step": 5}
    assert "parent:loss" not in shown
    assert lines(first)[0] is None


def test_zoom_and_ranks(tmp_path: Path) -> None:
    run = MadeRun(tmp_path, ranks=3)
    run.rows_of([float(n) for n in range(5000)])
    library = Library([root_of(tmp_path)])
    read_all(library)
    options: dict[str, Any] = {"by_time": False, "low": 100.0, "high": 110.0}
    (line,) = zoomed(library, run.id, "report:loss", ranks=False, **options) or []
    assert line["steps"] == [float(n) for n in range(99, 112)]
    ranks = zoomed(library, run.id, "report:loss", ranks=True, **options) or []
    assert [one["rank"] for one in ranks] == [0, 1, 2]
    assert zoomed(library, "0:nothing", "report:loss", ranks=False, **options) is None
    assert zoomed(library, run.id, "report:other", ranks=False, **options) == []


def test_the_diagnosis_has_what_a_colleague_asks_for(tmp_path: Path, run: MadeRun) -> None:
    run.report({"loss": 1.5})
    error = {"type": "ValueError", "message": "nan", "text": "Traceback …\nValueError: nan\n"}
    run.event(
        "failure",
        attempt=1,
        message="Rank 0 failed with ValueError: nan.",
        errors=[{"rank": 0, "error": error}],
        retry=False,
        time=2.0,
    )
    run.end("failed")
    (run.path / "logs").mkdir()
    (run.path / "logs" / "rank_0.log").write_text("epoch 1\n\x1b[2Jsee\rlast words\n")
    library = Library([root_of(tmp_path)])
    read_all(library)
    text = diagnosis_text(library, run.id)
    assert text is not None
    for part in ("state:      failed", "loss=1.5", "ValueError: nan", "last words", run.path.name):
        assert part in text
    assert "\x1b" not in text
    assert diagnosis_text(library, "0:nothing") is None


def test_a_running_run_is_told_from_one_whose_driver_died(tmp_path: Path, run: MadeRun) -> None:
    library = Library([root_of(tmp_path)])
    journal = held(run)
    read_all(library)
    (message,) = RunsView(library).news()
    assert message["rows"][0]["state"] == "running"
    journal.close()
    library.states.clear()
    (message,) = RunsView(library).news()
    assert message["rows"][0]["state"] == "unfinished"


# ---------------------------------------------------------------------------------------- logs


def test_logs_are_tailed_and_searched(run: MadeRun) -> None:
    place = model_of(run).place
    assert log_ranks(place) == []
    folder = run.path / "logs"
    folder.mkdir()
    (folder / "rank_0.log").write_bytes(b"x" * 200_000 + b"\nfirst\n\x1b[31mred\x1b[0m\nha")
    (folder / "other.txt").write_text("")
    assert log_ranks(place) == [0]
    tail = LogTail(place, 0)
    assert tail.more() == ["first", "red"]
    with (folder / "rank_0.log").open("ab") as file:
        file.write(b"lf\n")
    assert tail.more() == ["half"]
    assert tail.more() == []
    assert search_log(place, 0, "RED") == ([(3, "red")], False)
    assert search_log(place, 7, "red") == ([], False)


def test_a_log_without_ends_of_lines_is_shown_and_searched(run: MadeRun) -> None:
    place = model_of(run).place
    (run.path / "logs").mkdir()
    log = run.path / "logs" / "rank_0.log"
    log.write_bytes(b"start\n\r 10%\r 20%")
    tail = LogTail(place, 0)
    assert tail.more() == ["start"]
    assert tail.unended == " 20%"
    with log.open("ab") as file:
        file.write(b"\r 30%")
    assert tail.more() == []
    assert tail.unended == " 30%"
    with log.open("ab") as file:
        file.write(b"\ndone\n")
    assert tail.more() == [" 30%", "done"]
    assert tail.unended == ""
    # More than anybody could follow: on from its end.
    with log.open("ab") as file:
        file.write(b"z" * (3 << 20) + b"\nend\n")
    assert tail.more() == ["end"]
    # Shorter: a new file.
    log.write_bytes(b"again\n")
    assert tail.more() == ["again"]


# ----------------------------------------------------------------------------------- the roots


def test_no_link_leads_out_of_a_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    secret = MadeRun(outside, "hidden")
    (outside / "secret.txt").write_text("secret\n")
    root = tmp_path / "root"
    run = MadeRun(root)
    (root / "link").symlink_to(outside / "hidden")
    (run.path / "logs").mkdir()
    (run.path / "logs" / "rank_0.log").symlink_to(outside / "secret.txt")
    (run.path / "environment.json").symlink_to(outside / "secret.txt")
    (root / "made" / "trial").symlink_to(secret.path)
    library = Library([root_of(root)])
    read_all(library)
    assert list(library.runs) == [run.id]
    place = library.runs[run.id].place
    assert log_ranks(place) == []
    assert LogTail(place, 0).more() == []
    assert search_log(place, 0, "secret") == ([], False)
    with pytest.raises(OSError, match="symbolic links"):
        place.read("environment.json")
    (run.path / "folder").symlink_to(outside)
    with pytest.raises(PermissionError, match="is not a file below"):
        place.child("folder").read("secret.txt")
    os.mkfifo(run.path / "pipe")
    with pytest.raises(OSError, match="not a file below"):
        place.read("pipe")


def test_an_experiment_that_names_a_directory_elsewhere_shows_nothing_of_it(
    tmp_path: Path,
) -> None:
    outside = MadeRun(tmp_path / "outside", "hidden")
    outside.report({"loss": 1.0})
    place = made_experiment(tmp_path / "root", 1)
    journal = place / "experiment.jsonl"
    (trial,) = place.glob("objective_*")
    text = journal.read_text()
    for name in (f"../../outside/hidden/{outside.path.name}", str(outside.path)):
        journal.write_text(text.replace(trial.name, name))
        library = Library([root_of(tmp_path / "root")])
        read_all(library)
        (search,) = library.searches.values()
        assert search.damage is not None
        assert "is not the name of a trial's directory" in search.damage
        assert not search.trials


def test_a_trial_that_is_a_link_out_of_the_root_is_not_read(tmp_path: Path) -> None:
    outside = MadeRun(tmp_path / "outside", "hidden")
    outside.report({"loss": 1.0})
    place = made_experiment(tmp_path / "root", 1)
    (trial,) = place.glob("objective_*")
    trial.rename(tmp_path / "old")
    trial.symlink_to(outside.path)
    library = Library([root_of(tmp_path / "root")])
    read_all(library)
    (search,) = library.searches.values()
    assert [one.model for one in search.trials.values()] == [None]


def test_remote_journals_are_read_from_where_they_were(tmp_path: Path) -> None:
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    run = MadeRun(tmp_path / "bucket")
    run.report({"loss": 1.0})
    filesystem = SubTreeFileSystem(str(tmp_path / "bucket"), LocalFileSystem())
    root = Root(open_storage("made", filesystem), "made")
    assert not root.storage.is_local
    library = Library([root])
    read_all(library)
    (model,) = library.runs.values()
    assert list(model.metrics["loss"].values) == [1.0]
    # What follows is in segments, as on a store that cannot append.
    size = (run.path / "journal.jsonl").stat().st_size
    line = b'{"event":"end","state":"finished","time":5.0}\n'
    segments = run.path / ".journal.jsonl.segments"
    segments.mkdir()
    (segments / f"{size:015d}-{size + len(line):015d}").write_bytes(line)
    assert model.follow()
    assert model.state == "finished"
    # No more than was asked for is in memory, of the journal and of its segments.
    place = model.place
    assert [len(place.read("journal.jsonl", 0, n)) for n in (10, size, size + 5)] == [
        10,
        size,
        size + 5,
    ]
    assert place.read("journal.jsonl", size + 2, 7) == line[2:9]
    assert place.read("journal.jsonl", 0, 1 << 20).endswith(line)
