"""Run the benchmarks, all or the named ones, and print one table of ratios against the peers."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import runpy
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from common import HERE, Bench, Measurement, ProgramFailed, foreign_load, median

QUESTIONS = (
    "startup",
    "reporting",
    "checkpointing",
    "state",
    "recovery",
    "reload",
    "ledger",
    "guard",
    "ddp",
    "frameworks",
    "memory",
    "data",
    "data_processes",
    "tune",
    "cluster",
    "scale",
    "tracking",
    "ui",
)
RESULTS = HERE / "results"


def main() -> int:
    """Measure, print, write; 1 if something of ours failed to run."""
    arguments = _arguments()
    names = arguments.names or list(QUESTIONS)
    peers_python = _peers_python()
    machine = _machine(peers_python)
    _say(", ".join(f"{key} {value}" for key, value in machine.items()))
    measured: dict[str, list[Measurement]] = {}
    failed = []
    loads: dict[str, list[float | None]] = {}
    with tempfile.TemporaryDirectory(prefix="lsb-", dir=arguments.dir) as work:
        bench = Bench(Path(work), arguments.quick, peers_python, _say)
        for name in names:
            busy = [foreign_load()]
            _say(f"{name}:")
            start = time.monotonic()
            try:
                measured[name] = importlib.import_module(name).measure(bench)
            except ProgramFailed as error:
                failed.append(name)
                _say(f"{name} failed: {error}")
            busy.append(foreign_load())
            loads[name] = busy
            if any(load is not None and load > 0.2 for load in busy):
                _say(f"{name}: other processes were busy, cores before and after: {busy}")
            _say(f"{name}: done in {time.monotonic() - start:.0f} s")
    rows = {name: [row for m in found for row in _rows(m)] for name, found in measured.items()}
    _print([row for found in rows.values() for row in found])
    _write_record(machine, loads, [m for found in measured.values() for m in found])
    if arguments.quick:
        _say("the pages are left as they were: a quick run only shows that everything runs")
    else:
        for name, found in rows.items():
            _write_page(name, machine, loads[name], found)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(QUESTIONS))
    parser.add_argument("--quick", action="store_true", help="few repetitions: does it all run?")
    parser.add_argument("--dir", help="where runs and checkpoints go; a temporary directory")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(QUESTIONS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(QUESTIONS)}")
    return arguments


def _say(text: str) -> None:
    print(text, flush=True)


def _peers_python() -> Path | None:
    named = os.environ.get("LOCKSTEP_PEERS_PYTHON")
    # Not resolved: the interpreter of an environment is known by its path.
    python = Path(named) if named else HERE.parent / ".venv-peers" / "bin" / "python"
    return python if python.exists() else None


def _machine(peers_python: Path | None) -> dict[str, str]:
    ray = "not there"
    if peers_python is not None:
        code = "from importlib.metadata import version; print(version('ray'))"
        found = subprocess.run(
            [peers_python, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        ray = found.stdout.strip() or ray
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "not there"
    return {
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "torch": torch,
        "ray": ray,
    }


Row = tuple[str, str, str, str, str, str]
HEADINGS: Row = ("what", "lockstep", "against", "theirs", "ratio", "reach")


def _rows(measurement: Measurement) -> list[Row]:
    m = measurement
    own = "" if m.reach is None else f"{_mark(m.reached)} {m.reach.text}"
    first = (m.what, _figure(m.samples, m.unit), "", "", "", own)
    rows: list[Row] = []
    for peer in m.against:
        ratio = m.ratio(peer)
        reach = "" if peer.reach is None else f"{_mark(m.peer_reached(peer))} {peer.reach.text}"
        figure = _figure(peer.samples, m.unit) if peer.samples else f"– ({peer.note})"
        rows.append(("", "", peer.system, figure, _ratio(ratio, m.ratio_interval(peer)), reach))
    if rows and not own:
        rows[0] = (*first[:2], *rows[0][2:])
        return rows
    return [first, *rows]


def _mark(reached: bool | None) -> str:
    return {True: "✓", False: "✗", None: "?"}[reached]


def _times(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio:,.0f}×" if ratio >= 20 else f"{ratio:.1f}×" if ratio >= 3 else f"{ratio:.2f}×"


def _ratio(ratio: float | None, interval: tuple[float, float] | None) -> str:
    if interval is None or interval[0] == interval[1]:
        return _times(ratio)
    return f"{_times(ratio)} ({_times(interval[0])[:-1]}–{_times(interval[1])[:-1]})"


def _figure(samples: list[float], unit: str) -> str:
    value = median(samples)
    if unit == "s":
        return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value:.2f} s"
    if unit == "/s":
        return f"{value:,.0f} /s" if value >= 100 else f"{value:.1f} /s"
    return f"{value:,.0f} {unit}"


def _print(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="lockstep against its peers: medians (95 %); above 1× lockstep is better")
    for heading in HEADINGS:
        right = heading in ("lockstep", "theirs", "ratio")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows:
        if row[0] and table.rows:
            table.add_section()
        table.add_row(*row)
    console = Console()
    Console(width=max(console.width, 120)).print(table)


def _write_record(
    machine: dict[str, str], loads: dict[str, list[float | None]], measured: list[Measurement]
) -> None:
    """Every sample, as JSON, beside those of earlier runs."""
    now = datetime.now().astimezone()
    record = {
        "date": now.isoformat(timespec="seconds"),
        "machine": machine,
        "foreign_load": loads,
        "measurements": [
            {
                "what": m.what,
                "unit": m.unit,
                "lockstep": m.samples,
                "reached": m.reached,
                "against": [
                    {
                        "system": peer.system,
                        "samples": peer.samples,
                        "ratio": m.ratio(peer),
                        "ratio_interval": m.ratio_interval(peer),
                        "reached": m.peer_reached(peer),
                        "note": peer.note,
                    }
                    for peer in m.against
                ],
            }
            for m in measured
        ],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    _say(f"written: {path}")


def _write_page(
    name: str, machine: dict[str, str], loads: list[float | None], rows: list[Row]
) -> None:
    """The question's newest answer."""
    described = ", ".join(f"{key} {value}" for key, value in machine.items())
    question = (sys.modules[name].__doc__ or name).strip().partition("\n")[0]
    before, after = ("–" if load is None else f"{load:.1f}" for load in loads)
    lines = [
        f"# {question}",
        "",
        f"{datetime.now():%Y-%m-%d}; {described}. Medians with the interval that noise leaves for "
        "the ratio; above 1× lockstep is better; ? means noise hides the answer. Cores that other "
        f"processes kept busy before and after: {before}, {after}.",
        "",
        *(f"| {' | '.join(row)} |" for row in (HEADINGS, ("---",) * len(HEADINGS), *rows)),
    ]
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")
    runpy.run_path(str(HERE.parent / "scripts" / "charts.py"), run_name="__main__")


if __name__ == "__main__":
    sys.exit(main())
