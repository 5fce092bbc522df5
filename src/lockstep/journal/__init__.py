"""A run's journal: everything that happened in the run, one JSON object a line.

``writer`` appends to it, ``lock`` says who may, ``segments`` is its copy on storage that cannot
append. ``records`` reads it, ``lookup`` finds a run by its name, ``environment`` is what a run was
started with. Nothing here executes anything of a run.
"""

from lockstep.journal.writer import Journal, check_version, parse_line, read_lines

__all__ = ["Journal", "check_version", "parse_line", "read_lines"]
