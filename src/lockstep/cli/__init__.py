"""The ``lockstep`` command: one file a command, with its arguments and examples."""

from lockstep.cli.program import main

__all__ = ["main"]
