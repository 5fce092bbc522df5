"""Each kind of warning is shown once."""

from __future__ import annotations

import pytest

from lockstep.console import SilentDisplay
from lockstep.console.warn_once import WarnOnce


def test_a_kind_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    warn = WarnOnce(SilentDisplay())
    warn("slow", "first")
    warn("slow", "second")
    warn("full", "third")
    assert capsys.readouterr().err == "first\nthird\n"
    assert "slow" in warn
    assert "other" not in warn
