"""Renews the libraries of the dashboard in src/lockstep/ui/static/vendor, from npm packages.

    python scripts/vendor_ui.py          check the files against vendor.json
    python scripts/vendor_ui.py --renew  download the versions that vendor.json names

``vendor.json`` has each package's version, licence, the hash of its archive, and the hash of each
file. A file is as the package has it, except for the changes that ``FILES`` names: a browser has no
package names. To update a library, change its version in ``vendor.json`` and renew.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "src" / "lockstep" / "ui" / "static" / "vendor"
NOTE = FOLDER / "vendor.json"

FILES: dict[str, dict[str, str]] = {
    "preact": {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "hooks.js"},
    "htm": {"dist/htm.module.js": "htm.js"},
    "uplot": {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
}
"""Package → file in the package → its name here."""

CHANGES = {
    b'from"preact"': b'from"./preact.js"',
    b"from 'preact'": b"from './preact.js'",
    b'from "preact"': b'from "./preact.js"',
}


def main() -> int:
    """Check or renew; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--renew", action="store_true")
    note = json.loads(NOTE.read_text())
    if parser.parse_args().renew:
        renewed = {name: renew(name, one["version"]) for name, one in note.items()}
        NOTE.write_text(json.dumps(renewed, indent=2) + "\n")
        print(f"{len(renewed)} libraries are in {FOLDER}")
        return 0
    wrong = differences(note)
    print("\n".join(wrong) or "every file is as vendor.json says")
    return 1 if wrong else 0


def differences(note: dict[str, Any]) -> list[str]:
    """Files that are not what ``vendor.json`` says, or that it does not name."""
    said = {name: digest for one in note.values() for name, digest in one["files"].items()}
    found = {path.name: sha256(path.read_bytes()) for path in FOLDER.iterdir() if path != NOTE}
    return [
        f"{name}: {found.get(name, 'missing')} instead of {said.get(name, 'nothing')}"
        for name in sorted(said.keys() | found.keys())
        if said.get(name) != found.get(name)
    ]


def renew(name: str, version: str) -> dict[str, Any]:
    """Download one package with npm, which checks its hash, and take its files."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", f"{name}@{version}"],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (archive,) = Path(folder).glob("*.tgz")
        data = archive.read_bytes()
        with tarfile.open(archive) as opened:
            about = json.loads(read(opened, "package/package.json"))
            files = {f"{name}.LICENSE": licence(opened)}
            for source, target in FILES[name].items():
                files[target] = changed(read(opened, f"package/{source}"))
    for target, content in files.items():
        (FOLDER / target).write_bytes(content)
    return {
        "version": about["version"],
        "licence": about["license"],
        "home": about.get("homepage") or about["repository"]["url"],
        "archive": "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode(),
        "files": {target: sha256(content) for target, content in files.items()},
    }


def changed(content: bytes) -> bytes:
    """A file as a browser can load it: no map of its source, no names of packages."""
    for old, new in CHANGES.items():
        content = content.replace(old, new)
    lines = content.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"//# sourceMappingURL"))


def licence(archive: tarfile.TarFile) -> bytes:
    """The text of the package's licence."""
    for name in ("package/LICENSE", "package/LICENSE.md", "package/license"):
        if name in archive.getnames():
            return read(archive, name)
    raise SystemExit("a package without a licence text")


def read(archive: tarfile.TarFile, name: str) -> bytes:
    """One file of an archive."""
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def sha256(content: bytes) -> str:
    """The hash that vendor.json names."""
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
