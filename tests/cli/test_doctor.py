"""``lockstep doctor``: each line is ok, or says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep import cli
from lockstep.cli import doctor


def test_a_machine_that_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", str(tmp_path), "--json"])
    lines = {line["check"]: line for line in json.loads(capsys.readouterr().out)}
    assert list(lines) == [
        *("installation", "GPUs", "ports", "shared memory", "open files"),
        *("storage", "locks", "clock", "speed"),
    ]
    for check in ("installation", "ports", "storage", "locks", "clock"):
        assert lines[check]["ok"], lines[check]
    assert "reports a second" in lines["speed"]["text"]
    assert code == (0 if all(line["ok"] for line in lines.values()) else 1)
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_a_line_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(doctor, "_MIN_SHARED_MEMORY", 1 << 60)
    monkeypatch.setattr(doctor, "is_locked", lambda path: None)
    assert cli.main(["doctor", str(tmp_path), "--no-run"]) == 1
    out = capsys.readouterr().out
    assert "BAD  locks          " in out
    assert "mount it with locks" in out
    assert "start the container with --shm-size=8g" in out
    assert cli.main(["doctor", str(file / "below"), "--no-run"]) == 1
    assert "BAD  storage        Could not " in capsys.readouterr().out


def test_the_speed_of_a_slow_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_SLOW_START_S", 0.0)
    assert cli.main(["doctor", str(tmp_path)]) == 1
    assert "which is slow: look for other load" in capsys.readouterr().out
