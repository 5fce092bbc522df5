"""Record a real session in a terminal and draw it as an SVG that moves.

    python scripts/cast.py          # renews docs/images/session.svg

The commands are run in a pseudo terminal, and the screen is read while they run. Each row of the
picture is drawn once for each text it has had, and shown while it had that text. Long waits are
shortened. The picture needs no script, so a page may include it as an image.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from typing import Any

import pyte

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "session.svg"
COLUMNS, LINES = 112, 28
CHARACTER, LINE = 8.4, 18
LONGEST_WAIT = 0.7
PAUSE_AT_END = 4.0
COLOURS = {
    "default": "#d8dee9",
    "black": "#4c566a",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "yellow": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#eceff4",
}

SESSION = [
    "python train.py",
    "lockstep why -1",
    "lockstep ls",
    "lockstep plot -1 accuracy",
]

# The example of the quick start, with a worker that is killed on the way.
PATCH = """
from lockstep.testing import FaultPlan
from lockstep.train import FailureConfig
"""

Row = tuple[tuple[str, str, bool], ...]
"""The runs of a row: text, colour, bold."""


def rows_of(screen: Any) -> list[Row]:
    """What the screen shows, each row as runs of equal style."""
    rows = []
    for number in range(LINES):
        runs: list[list[Any]] = []
        for column in range(COLUMNS):
            cell = screen.buffer[number][column]
            colour = COLOURS.get(cell.fg, f"#{cell.fg}" if len(cell.fg) == 6 else "#d8dee9")
            if runs and runs[-1][1:] == [colour, cell.bold]:
                runs[-1][0] += cell.data
            else:
                runs.append([cell.data, colour, cell.bold])
        while runs and not runs[-1][0].strip():
            runs.pop()
        if runs:
            runs[-1][0] = runs[-1][0].rstrip()
        rows.append(tuple((text, colour, bold) for text, colour, bold in runs))
    return rows


class Recorder:
    """A screen, and what it has shown at which second of the picture."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.now = 0.0
        self.frames: list[tuple[float, list[Row]]] = []

    def feed(self, data: bytes, waited: float) -> None:
        """Show what a program printed, after a wait."""
        self.now += min(waited, LONGEST_WAIT)
        self.stream.feed(data)
        rows = rows_of(self.screen)
        if not self.frames or rows != self.frames[-1][1]:
            self.frames.append((self.now, rows))

    def type(self, text: str) -> None:
        """Show a command as a person types it."""
        self.feed(b"\x1b[32m$\x1b[0m ", 0.5)
        for character in text:
            self.feed(character.encode(), 0.05)
        self.feed(b"\r\n", 0.4)

    def run(self, command: str, directory: Path, environment: dict[str, str]) -> None:
        """Run a command in a terminal of this size and show what it prints."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            ["bash", "-c", f"stty cols {COLUMNS} rows {LINES}; exec {command}"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env=environment,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            last = time.monotonic()
            while True:
                if not select.select([ours], [], [], 0.05)[0]:
                    if process.poll() is not None:
                        break
                    continue
                try:
                    data = os.read(ours, 65536)
                except OSError:  # the program has closed its terminal
                    break
                now = time.monotonic()
                self.feed(data, now - last)
                last = now
        os.close(ours)


def picture(frames: list[tuple[float, list[Row]]]) -> str:
    """The SVG: each text of each row, shown while the row had it."""
    total = frames[-1][0] + PAUSE_AT_END
    width, height = COLUMNS * CHARACTER + 24, LINES * LINE + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" role="img"><title>A session with lockstep</title>'
        "<style>text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "white-space:pre}</style>"
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#282c34"/>'
        '<circle cx="18" cy="16" r="5" fill="#e06c75"/><circle cx="36" cy="16" r="5" '
        'fill="#e5c07b"/><circle cx="54" cy="16" r="5" fill="#98c379"/>'
    ]
    for number in range(LINES):
        shown: list[tuple[float, Row]] = []
        for at, rows in frames:
            if not shown or rows[number] != shown[-1][1]:
                shown.append((at, rows[number]))
        for index, (start, row) in enumerate(shown):
            if not row:
                continue
            last = index + 1 == len(shown)
            end = total if last else shown[index + 1][0]
            y = 44 + number * LINE
            # What is there at the end is what a reader sees who has no animations.
            parts.append(f'<g visibility="{"visible" if last else "hidden"}">')
            parts.append(_animation(start / total, end / total, total) + _text(row, y) + "</g>")
    return "\n".join([*parts, "</svg>", ""])


def _animation(start: float, end: float, total: float) -> str:
    values, times = ["hidden", "visible", "hidden"], [0.0, start, end]
    if start == 0:
        del values[0], times[0]
    if end >= 1:
        del values[-1], times[-1]
    return (
        f'<animate attributeName="visibility" calcMode="discrete" dur="{total:.2f}s" '
        f'repeatCount="indefinite" values="{";".join(values)}" '
        f'keyTimes="{";".join(f"{moment:.4f}" for moment in times)}"/>'
    )


def _text(row: Row, y: int) -> str:
    parts, column = [], 0
    for text, colour, bold in row:
        if text.strip():
            weight = ' font-weight="bold"' if bold else ""
            x = 12 + column * CHARACTER
            length = f'textLength="{len(text) * CHARACTER:.1f}"'
            parts.append(
                f'<text x="{x:.1f}" y="{y}" {length} fill="{colour}"{weight}>{escape(text)}</text>'
            )
        column += len(text)
    return "".join(parts)


def main() -> None:
    """Record the session and write the picture."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="", dir="/tmp") as folder:
        directory = Path(folder, "digits")
        directory.mkdir()
        script = (ROOT / "examples" / "01_quickstart.py").read_text(encoding="utf-8")
        script = script.replace(
            'if __name__ == "__main__":', PATCH + '\nif __name__ == "__main__":'
        )
        script = script.replace(
            "run_config=RunConfig(checkpoint_config=best_two),",
            'run_config=RunConfig(name="digits", checkpoint_config=best_two, '
            "failure_config=FailureConfig(max_failures=1)),\n"
            "        fault_plan=FaultPlan().kill(rank=1, at_report=6),",
        )
        (directory / "train.py").write_text(script, encoding="utf-8")
        programs = Path(folder, "bin")
        programs.mkdir()
        (programs / "python").symlink_to(sys.executable)
        command = f'#!/bin/sh\nexec {sys.executable} -m lockstep "$@"\n'
        (programs / "lockstep").write_text(command)
        (programs / "lockstep").chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "LOCKSTEP_STORAGE": str(Path(folder, "runs")),
            "TERM": "xterm-256color",
        }
        for command in SESSION:
            if command != SESSION[0]:
                recorder.feed(b"", 1.5)
            recorder.type(command)
            program = command.replace("python", sys.executable, 1)
            recorder.run(program, directory, environment)
            recorder.now += 1.5
    text = picture(recorder.frames)
    PICTURE.write_text(text, encoding="utf-8")
    print(f"{PICTURE}: {len(recorder.frames)} frames, {len(text) // 1024} kB")


if __name__ == "__main__":
    main()
