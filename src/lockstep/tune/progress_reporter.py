"""Progress reporters under the name of their Tune module."""

from __future__ import annotations

from lockstep.tune.compat import CLIReporter, JupyterNotebookReporter, ProgressReporter

__all__ = ["CLIReporter", "JupyterNotebookReporter", "ProgressReporter"]
