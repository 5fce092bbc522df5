"""Ask the package index whether installed dependencies of lockstep have known vulnerabilities.

    python scripts/vulnerabilities.py [--index URL]

Looked at is what ``pyproject.toml`` names, extras included, as far as it is installed here: a few
dozen packages, one request each. Exit code 1 and a line for each vulnerability if there are any.
An index that cannot be reached, or does not offer this, is said so, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 10.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pips_index() -> str | None:
    """The address of the package index that pip uses by default; None if there is no pip."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return None
    return str(PyPI.url)


def dependencies(pyproject: dict[str, Any]) -> list[str]:
    """The names that a ``pyproject.toml`` requires, without its own."""
    project = pyproject["project"]
    groups = [
        project["dependencies"],
        *project.get("optional-dependencies", {}).values(),
        *pyproject.get("dependency-groups", {}).values(),
    ]
    names = {found[0].lower() for group in groups for text in group if (found := _NAME.match(text))}
    return sorted(names - {project["name"].lower()})


def installed(names: Iterable[str]) -> dict[str, str]:
    """Name → version, of those that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def vulnerabilities(index: str, name: str, number: str) -> list[str]:
    """What the index knows about one version, a line each. Raises OSError or ValueError."""
    address = f"{index.rstrip('/')}/pypi/{name}/{number}/json"
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
        known = json.load(answer).get("vulnerabilities", [])
    return [
        f"{name} {number}: {', '.join([item['id'], *item.get('aliases', ())])}; fixed in "
        f"{', '.join(item.get('fixed_in') or ()) or 'no version yet'}"
        for item in known
        if not item.get("withdrawn")
    ]


def main() -> int:
    """Print what was found; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--index", default=None, help="by default the one that pip uses")
    parser.add_argument("--project", type=Path, default=ROOT / "pyproject.toml")
    options = parser.parse_args()
    if sys.version_info < (3, 11):
        print("vulnerabilities: not checked, because Python 3.10 cannot read pyproject.toml")
        return 0
    import tomllib

    index = options.index or pips_index()
    if index is None:
        print("vulnerabilities: not checked, because pip names no index here; give --index URL")
        return 0
    pyproject = tomllib.loads(options.project.read_text(encoding="utf-8"))
    found: list[str] = []
    known = unknown = 0
    for name, number in installed(dependencies(pyproject)).items():
        try:
            found += vulnerabilities(index, name, number)
            known += 1
        except (OSError, ValueError) as error:
            # One version may be of another index, such as torch's +cpu; not one after the other.
            unknown += 1
            missing = isinstance(error, urllib.error.HTTPError) and error.code == 404
            if not missing or (unknown > 2 and not known):
                return _not_checked(index, str(error))
    for line in found:
        print(line)
    print(f"vulnerabilities: {len(found)} in {known} dependencies that {index} knows")
    return 1 if found else 0


def _not_checked(index: str, why: str) -> int:
    print(f"vulnerabilities: not checked, because {index} does not answer that here ({why})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
