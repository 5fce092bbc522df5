"""The ``lockstep`` command: one file a command, with its arguments and examples."""

from __future__ import annotations

import sys
from collections.abc import Sequence

TYPE_CHECKING = False  # see lockstep/__init__.py
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command; returns what to pass to ``sys.exit``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["run"] and given[1:2] not in (["-h"], ["--help"]):
        # Without argparse and the other commands: a script is to start at once.
        from lockstep.warm.launch import launch

        return launch(given[1:])
    from lockstep.cli import program

    return program.main(given)
