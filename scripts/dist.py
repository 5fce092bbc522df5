"""Build the wheel and the source archive, the same bytes from the same commit, and try them.

    python scripts/dist.py          # make dist: archives, sbom.cdx.json, licences.md in dist/
    python scripts/dist.py --try    # build again and compare; install each and train with it
    python scripts/dist.py --try --python python3.10 --python python3.14    # … on these

The commit is exported to a temporary directory, so files that are not committed are in no archive.
Every time stamp is the commit's. The source archive is packed here: setuptools' own has the time of
the build in it.
"""

from __future__ import annotations

import argparse
import email
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"

TRIAL = """
from lockstep import train
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig

def train_func(config):
    train.report({"loss": 0.5})

result = DataParallelTrainer(
    train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0)
).fit()
assert result.metrics["loss"] == 0.5
import lockstep
print("trained with", lockstep.__version__, "from", lockstep.__file__)
"""


def build(target: Path, commit: str = "HEAD") -> list[Path]:
    """The archives of a commit, in ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    stamp = _git("show", "-s", "--format=%ct", commit).strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": stamp, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(source)
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, str(source)],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        built = []
        for file in sorted(Path(folder).glob("lockstep_train-*")):
            path = target / file.name
            content = file.read_bytes()
            if file.suffix == ".gz":
                content = _same_bytes(content, int(stamp))
            path.write_bytes(content)
            built.append(path)
    return built


def _same_bytes(archive: bytes, stamp: int) -> bytes:
    """A source archive with sorted entries, one time and no owner."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for entry in sorted(old.getmembers(), key=lambda member: member.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = stamp, 0, 0, "", ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            entry.pax_headers = {}
            new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    return gzip.compress(packed.getvalue(), mtime=stamp)


def check_same(built: list[Path], commit: str = "HEAD") -> None:
    """Build a commit again.

    Raises:
        SystemExit: an archive has other bytes this time.
    """
    with tempfile.TemporaryDirectory() as folder:
        for one, again in zip(built, build(Path(folder), commit), strict=True):
            if one.read_bytes() != again.read_bytes():
                raise SystemExit(f"{one.name} has other bytes when it is built again.")
    print("built twice: the same bytes", flush=True)


def metadata_of(wheel: Path) -> Message:
    """What a wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def requirements(wheel: Path) -> list[importlib.metadata.Distribution]:
    """What a wheel requires without extras, and what that requires, as installed here."""
    pending = _required(metadata_of(wheel).get_all("Requires-Dist") or [])
    found: dict[str, importlib.metadata.Distribution] = {}
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # not for this platform
            continue
        pending += _required(found[name].requires or [])
    return [found[name] for name in sorted(found)]


def _required(lines: list[str]) -> list[str]:
    plain = (line for line in lines if "extra ==" not in line)
    return [re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0] for line in plain]


def licence_of(distribution: importlib.metadata.Distribution) -> str:
    """The licence as its package states it, in one line."""
    metadata = distribution.metadata
    stated = _stated(metadata, "License-Expression")
    if not stated:
        classifiers = metadata.get_all("Classifier") or []
        names = [c.rsplit("::", 1)[1].strip() for c in classifiers if c.startswith("License ::")]
        stated = ", ".join(names) or _stated(metadata, "License").partition("\n")[0]
    return stated or "not stated"


def _stated(metadata: Any, field: str) -> str:
    # Any: the type that Python gives the message lacks get(), which it has.
    return str(metadata.get(field) or "")


def sbom(wheel: Path) -> str:
    """A wheel and its requirements as a CycloneDX document."""
    own = metadata_of(wheel)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": _component(own["Name"], own["Version"], own["License-Expression"])
        },
        "components": [
            _component(d.metadata["Name"], d.version, licence_of(d)) for d in requirements(wheel)
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _component(name: str, version: str, licence: str) -> dict[str, object]:
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower()}@{version}",
        "licenses": [{"license": {"name": licence}}],
    }


def licences(wheel: Path) -> str:
    """A wheel's requirements and their licences as a table."""
    found = requirements(wheel)
    rows = [f"| {d.metadata['Name']} | {d.version} | {licence_of(d)} |" for d in found]
    return "\n".join(["| package | version | licence |", "|---|---|---|", *rows]) + "\n"


def lowest(wheel: Path, python: str = f"{sys.version_info[0]}.{sys.version_info[1]}") -> list[str]:
    """The lowest version of each requirement that a wheel allows on a Python, for pip."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    found: dict[str, Version] = {}
    for line in metadata_of(wheel).get_all("Requires-Dist") or []:
        requirement = Requirement(line)
        here = {"extra": "", "python_version": python}
        if requirement.marker is None or requirement.marker.evaluate(here):
            bounds = [Version(s.version) for s in requirement.specifier if s.operator == ">="]
            if requirement.name in found:
                bounds.append(found[requirement.name])
            found[requirement.name] = max(bounds)
    return [f"{name}=={version}" for name, version in found.items()]


def try_out(archives: list[Path], pins: list[str], interpreter: str = sys.executable) -> None:
    """Install archives in an empty environment, one after the other, and train with each."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([interpreter, "-m", "venv", str(Path(folder, "venv"))], check=True)
        python = str(Path(folder, "venv", "bin", "python"))
        environment = {**os.environ, "LOCKSTEP_STORAGE": str(Path(folder, "results"))}
        environment.pop("PYTHONPATH", None)
        script = Path(folder, "trial.py")
        script.write_text(TRIAL, encoding="utf-8")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        for archive in archives:
            # What the first has brought along is there for the second.
            again = ["--force-reinstall", "--no-deps"] if archive != archives[0] else pins
            for command in (
                [*pip, *again, str(archive)],
                [python, str(script)],
                [python, "-m", "lockstep", "ls"],
            ):
                subprocess.run(command, check=True, cwd=folder, env=environment)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    """Build; with ``--try`` build again, install and train, too."""
    parser = argparse.ArgumentParser(description="Build the archives of a release.")
    parser.add_argument("--try", dest="tried", action="store_true", help="compare, install, train")
    parser.add_argument("--lowest", action="store_true", help="… with the lowest versions allowed")
    parser.add_argument("--python", action="append", help="… on this interpreter; repeat for more")
    arguments = parser.parse_args()
    built = build(DIST)
    wheel = next(file for file in built if file.suffix == ".whl")
    (DIST / "sbom.cdx.json").write_text(sbom(wheel), encoding="utf-8")
    (DIST / "licences.md").write_text(licences(wheel), encoding="utf-8")
    sums = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}" for one in built]
    (DIST / "SHA256SUMS").write_text("\n".join(sums) + "\n", encoding="utf-8")
    print(*sums, sep="\n", flush=True)
    if arguments.tried:
        check_same(built)
        for python in arguments.python or [sys.executable]:
            version = _version_of(python)
            pins = lowest(wheel, version) if arguments.lowest else []
            print(f"try: Python {version}", *pins, flush=True)
            try_out(built, pins, python)


def _version_of(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
