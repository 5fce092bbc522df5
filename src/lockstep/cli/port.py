"""``lockstep port``: rewrite files that use Ray into files that use lockstep."""

from __future__ import annotations

import difflib
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from lockstep.cli.command import Command
from lockstep.cli.output import print_json
from lockstep.porting import Ported, port_source

__all__ = ["COMMAND"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", type=Path, help="a file, or a directory with all below"
    )
    parser.add_argument("--write", action="store_true", help="change the files")
    parser.add_argument("--diff", action="store_true", help="print what changes, as a patch")


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The Python files; of a directory without environments and hidden directories."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for directory, inner, names in os.walk(path):
            inner[:] = sorted(
                name
                for name in inner
                if name[0] != "."
                and name not in ("__pycache__", "site-packages", "node_modules")
                and not os.path.exists(os.path.join(directory, name, "pyvenv.cfg"))
            )
            yield from (Path(directory, name) for name in sorted(names) if name.endswith(".py"))


def _port(options: Namespace) -> int:
    complete = True
    found = []
    for path in _files(options.files):
        source = path.read_bytes()
        try:
            ported = port_source(source)
        except ValueError as error:
            print(f"lockstep port: {path}, {error}; the file is left alone.", file=sys.stderr)
            complete = False
            continue
        except ImportError as error:
            raise ValueError(str(error)) from error
        if ported.source == source and not ported.remarks:
            continue
        complete = complete and not ported.remarks
        found.append((path, source, ported))
        if options.write and ported.source != source:
            path.write_bytes(ported.source)
    if options.json:
        print_json(
            [
                {
                    "file": str(path),
                    "changed": ported.source != source,
                    "remarks": [asdict(remark) for remark in ported.remarks],
                }
                for path, source, ported in found
            ]
        )
    else:
        for each in found:
            _print(*each, options)
        if not found:
            print("Nothing to port: no file uses ray.")
    return 0 if complete else 1


def _print(path: Path, source: bytes, ported: Ported, options: Namespace) -> None:
    old, new = (text.decode("utf-8", "replace") for text in (source, ported.source))
    if options.diff:
        lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(*lines, str(path), str(path)))
    elif old != new:
        count = sum(1 for a, b in zip(old.splitlines(), new.splitlines(), strict=False) if a != b)
        verb = "changed" if options.write else "would change (--write changes it, --diff shows it)"
        print(f"{path}: {verb}, {count} line(s)")
    for remark in ported.remarks:
        print(f"{path}:{remark.line}: {remark.name}: {remark.reason}", file=sys.stderr)


COMMAND = Command(
    "port",
    "rewrite files that use Ray into files that use lockstep",
    (
        "lockstep port train.py             what would change, and what lockstep does not have",
        "lockstep port --diff train.py      the same as a patch",
        "lockstep port --write project/     change all files of a directory",
    ),
    _arguments,
    _port,
)
