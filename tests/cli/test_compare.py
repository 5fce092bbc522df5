"""``lockstep plot`` and ``lockstep compare``: runs over each other and side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep import cli, train
from lockstep.cli.plot import chart
from tests.integration.runs import fit


def learn(config: dict[str, float]) -> None:
    for step in range(5):
        train.log({"inner": step * 10.0})
        train.report({"loss": config["lr"] / (step + 1), "deep": {"acc": step}, "name": "x"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = str(tmp_path_factory.mktemp("runs"))
    return [
        fit(learn, workers=1, config={"lr": lr, "same": 1}, name=f"lr{lr}", storage_path=root).path
        for lr in (1.0, 2.0)
    ]


def test_a_chart_of_two_runs(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plot", *runs, "loss", "--width", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 60 for line in lines[:-2])
    assert lines[0].split("|")[0].strip() == "2"
    assert lines[15].split("|")[0].strip() == "0.2"
    assert lines[17].split() == ["1", "5"]
    assert lines[0].split("|")[1].startswith("o")
    assert lines[15].endswith("*")
    assert lines[-2].startswith("* lr1.0 ")
    assert lines[-2].endswith(": loss=0.2 at 5")
    assert lines[-1].startswith("o lr2.0 ")


def test_points_for_a_script(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for metric, points in (
        ("deep/acc", [[n + 1, n] for n in range(5)]),
        ("inner", [[n + 1, n * 10] for n in range(5)]),
    ):
        assert cli.main(["plot", runs[0], metric, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["points"] == points
    assert cli.main(["plot", runs[0], "nothing"]) == 1
    said = capsys.readouterr().err
    assert "has no number 'nothing'; it has loss, deep/acc, inner." in said
    assert "damaged" not in said


@pytest.mark.parametrize(
    "line",
    [
        [(1.0, 2.0)],
        [(1.0, float("nan")), (2.0, float("inf"))],
        [(0.0, -1e308), (1.0, 1e308)],
        [(float(n), float(n % 7)) for n in range(1000)],
        [(1.0, -1.0), (2.0, 0.0)],
    ],
)
@pytest.mark.parametrize("log", [False, True])
def test_any_line_can_be_drawn(line: list[tuple[float, float]], log: bool) -> None:
    rows = chart([line, line], 50, 8, log=log)
    assert all(len(row) <= 50 for row in rows)
    assert len(rows) in (1, 10)


def test_two_runs_side_by_side(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *runs]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][0] == "lr1.0"
    assert ["train_loop_config/lr", "1", "2"] in rows
    assert ["loss", "0.2", "0.4"] in rows
    assert ["best", "loss", "0.2", "0.4"] in rows
    assert ["environment", "that", "differs:", "nothing"] in rows
    assert not any("same" in cell for row in rows for cell in row)
    assert cli.main(["compare", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"] == {"train_loop_config/lr": [1.0, 2.0]}
    assert [run["path"] for run in found["runs"]] == [str(Path(run)) for run in runs]
