"""What an agent on a node tells the driver."""

from __future__ import annotations

import sys

import lockstep
from lockstep.engine.agent import version_difference, versions


def test_versions_have_python_and_lockstep() -> None:
    found = versions()
    assert found["Python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found["lockstep"] == lockstep.__version__
    assert version_difference("10.0.0.2", found, found) == ""


def test_another_version_is_one_sentence() -> None:
    text = version_difference("10.0.0.2", {"torch": "2.4"}, {"torch": "2.13"})
    assert text.startswith("node 10.0.0.2 has torch 2.4, and the driver has torch 2.13;")


def test_what_is_missing_is_one_sentence() -> None:
    text = version_difference("10.0.0.2", {}, {"torch": "2.13"})
    assert text.startswith("node 10.0.0.2 has no torch, and the driver has torch 2.13;")


def test_what_only_the_node_has_does_not_matter() -> None:
    assert version_difference("10.0.0.2", {"torch": "2.13"}, {}) == ""
