"""Run the code blocks of a page, and compare what they print with what the page shows.

    python scripts/doc_code.py docs/tutorial.md            # run, compare
    python scripts/doc_code.py --renew docs/tutorial.md    # and write the output into the page
    python scripts/doc_code.py --count docs/*.md           # which blocks run, which do not and why

``tests/test_doc_code.py`` does the first for every page. The blocks of a page run in order, in one
namespace and one empty working directory:

- A block in ``python`` is executed. If its first line is ``# NAME.py``, it is saved as that file.
- In a ``console`` block each line after ``$ `` is executed: ``lockstep …``, ``python FILE``. Of
  ``pip`` and ``make`` it is checked that the extra and the target exist.
- A ``json`` block has to be JSON. Other plain blocks (``text``) are drawings and file names.
- An ``output`` block is what the block before it prints, or the error that it raises.
- ``<!-- run … -->`` runs like a ``python`` block and is not shown: what a page takes for granted.

In what is shown, ``…`` stands for anything. Progress lines (``[lockstep] …``) may be left out. A
block below a paragraph ``*Not run by the tests: …*`` is not run; the paragraph says why. Nothing
else escapes: code and output in a plain or an indented block is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import linecache
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=fence)[ ]*$"
    r"|^<!-- run\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
NOT_RUN = re.compile(r"\*Not run by the tests: ([^*]+)\*\s*\Z")
PROGRESS = re.compile(r"\[lockstep\] (?!finished|failed|interrupted|preempted)\w+ · ")
# On a busy machine a run says so, whatever its page is about.
SLOW = re.compile(r"(?:\[lockstep\] )?.*[Rr]anks? .*ha(?:s|ve) not started for [\d.]+ s")
# What is another in each run, and stays readable on a page: the ids of trials, dates, durations.
VOLATILE = re.compile(
    r"(?<![0-9a-zA-Z])[0-9a-f]{5}(?=_\d{5})"
    r"|\d{4}-\d\d-\d\d[ _]\d\d[:-]\d\d[:-]\d\d"
    r"|\d+\.\d+(?= ?s\b)"
)
TEXT = {"", "text", "toml", "yaml", "csv"}
# In a plain block: a command, code, or what a run prints.
LOOSE = re.compile(r"^(?:\$ |>>> |pip |python |make |import |from \w+ import |\[)", re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)(?: {4,}\S[^\n]*\n)+")


class PageError(AssertionError):
    """A block failed, or printed something else than its page shows."""


@dataclass
class Block:
    """A block of a page, and where its text is."""

    language: str
    code: str
    line: int
    span: tuple[int, int]
    why_not: str | None
    """Why it is not run; None: it is."""


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page, in order; text blocks and directives left out."""
    return [block for block in _all_blocks(text) if block.language not in TEXT]


def _all_blocks(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        hidden = found["hidden"] is not None
        language = "python" if hidden else found["language"].strip()
        if language.startswith("{"):
            continue
        name = "hidden" if hidden else "code"
        reason = None if hidden else NOT_RUN.search(text[: found.start()])
        line = text.count("\n", 0, found.start(name)) + 1
        why_not = " ".join(reason[1].split()) if reason else None
        yield Block(language, found[name], line, found.span(name), why_not)


def loose_code(text: str) -> list[int]:
    """The lines of a page at which code or output begins that nothing runs or compares."""
    lines = [
        block.line
        for block in _all_blocks(text)
        if block.language in TEXT and block.why_not is None and LOOSE.search(block.code)
    ]
    rest = BLOCK.sub(_dots, text)  # the same lines, without blocks and the texts of lists
    rest = re.sub(r"^(?:[-*]|\d+\.) .*(?:\n+ +\S.*)*", _dots, rest, flags=re.MULTILINE)
    return lines + [rest.count("\n", 0, found.start()) + 1 for found in INDENTED.finditer(rest)]


def _dots(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", ".", found.group())


def run_page(page: Path) -> list[tuple[Block, str]]:
    """Run a page's blocks in the working directory.

    Returns:
        each block that shows output, with what was printed.

    Raises:
        PageError: a block failed, and the page does not show that it does.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shown: list[tuple[Block, str]] = []
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    for number, block in enumerate(blocks):
        following = blocks[number + 1] if number + 1 < len(blocks) else None
        where = f"{page.name}:{block.line}"
        if block.why_not is not None:
            continue
        if block.language == "output":
            before = blocks[number - 1] if number else None
            if before is None or before.language != "python" or before.why_not is not None:
                raise PageError(f"{where}: no block before this one runs, so nothing is compared.")
            continue
        if block.language == "console":
            shown.append((block, _run_commands(block.code, where)))
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "python":
            printed, error = _run_python(block.code, where, namespace)
            if following is not None and following.language == "output":
                shown.append((following, printed))
            elif error:
                raise PageError(f"{where}: the block failed.\n{printed}") from error
        else:
            raise PageError(f"{where}: what is a block in {block.language!r}? Say text, or run it.")
    return shown


def _run_python(
    code: str, where: str, namespace: dict[str, Any]
) -> tuple[str, BaseException | None]:
    if saved := re.match(r"# (\w+\.py)\n", code):
        Path(saved[1]).write_text(code, encoding="utf-8")
        return "", None
    linecache.cache[where] = (len(code), None, code.splitlines(keepends=True), where)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            exec(compile(code, where, "exec"), namespace)
        except (Exception, SystemExit) as error:
            output.write(f"{type(error).__name__}: {error}\n")
            return output.getvalue(), error
    return output.getvalue(), None


def _run_commands(code: str, where: str) -> str:
    printed = []
    for line in code.splitlines():
        if line.startswith("$ "):
            printed += [line, *_run_command(line[2:], where)]
    return "\n".join(printed) + "\n"


def _run_command(line: str, where: str) -> Iterator[str]:
    words = shlex.split(line, comments=True)
    if words[0] == "pip":
        _check_extras(line, where)
    elif words[0] == "make":
        _check_targets(words[1:], where)
    elif words[:2] == ["lockstep", "ui"]:
        raise PageError(
            f"{where}: lockstep ui does not end; say above the block why it is not run."
        )
    elif words[0] == "lockstep":
        yield from _run_lockstep(words[1:]).splitlines()
    elif words[0] == "python":
        done = subprocess.run(
            [sys.executable, *words[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        yield from done.stdout.splitlines()
    elif words[0] == "export":
        name, _, value = words[1].partition("=")
        os.environ[name] = value
    else:
        raise PageError(f"{where}: {words[0]} is no command that this script runs.")


def _run_lockstep(arguments: list[str]) -> str:
    from lockstep.cli import main

    output = io.StringIO()
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        contextlib.suppress(SystemExit),
    ):
        main(arguments)
    return output.getvalue()


def _check_extras(line: str, where: str) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(
        r"[\w-]+", ",".join(re.findall(r"(?:lockstep-train|\.)\[([^\]]*)\]", line))
    ):
        if not re.search(rf"^{extra} = \[", text, re.MULTILINE):
            raise PageError(f"{where}: lockstep-train has no extra {extra!r}.")


def _check_targets(words: list[str], where: str) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in (word for word in words if "=" not in word):
        if not re.search(rf"^{re.escape(target)}:", text, re.MULTILINE):
            raise PageError(f"{where}: the Makefile has no target {target!r}.")


def difference(block: Block, printed: str) -> str | None:
    """Where what was printed differs from what the page shows, None if nowhere."""
    wanted = _lines(block.code)
    got = _lines(printed)
    if not any(line.startswith("[lockstep]") for line in wanted):
        got = [line for line in got if not line.startswith("[lockstep]")]
    # A line that is only … stands for any number of lines.
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in wanted
    )
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in got)):
        return None
    return "the page shows:\n" + "\n".join(wanted) + "\nbut this was printed:\n" + "\n".join(got)


def _lines(text: str) -> list[str]:
    """The lines of an output without what depends on widths and on the machine's speed."""
    lines = (re.sub(r" +", " ", line.rstrip()) for line in text.strip("\n").splitlines())
    kept = (line for line in lines if line and not (PROGRESS.match(line) or SLOW.match(line)))
    return [VOLATILE.sub("#", line) for line in kept]


def check(page: Path) -> None:
    """Run a page and compare.

    Raises:
        PageError: it does not hold; says where and how.
    """
    wrong = [
        f"{page.name}:{block.line}: {different}"
        for block, printed in run_page(page)
        if (different := difference(block, printed))
    ]
    if wrong:
        raise PageError("\n\n".join(wrong))


def renew(page: Path) -> None:
    """Run a page, and write what was printed over what it shows and does not hold any more."""
    shown = run_page(page)
    text = page.read_text(encoding="utf-8")
    for block, printed in reversed(shown):
        if difference(block, printed):
            lines = printed.splitlines()
            kept = [line for line in lines if not (PROGRESS.match(line) or SLOW.match(line))]
            text = text[: block.span[0]] + "\n".join(kept) + "\n" + text[block.span[1] :]
    page.write_text(text, encoding="utf-8")


def count(page: Path) -> str:
    """How many blocks of a page run, and each one that does not, with the reason."""
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    kinds = {"python": "run", "console": "run", "output": "compared", "json": "read"}
    found = [kinds.get(block.language, block.language) for block in blocks if not block.why_not]
    numbers = ", ".join(f"{found.count(kind)} {kind}" for kind in sorted(set(found)))
    skipped = [
        f"  line {block.line}, {block.language}: {block.why_not}"
        for block in blocks
        if block.why_not
    ]
    return "\n".join([f"{page.name}: {numbers or 'none run'}, {len(skipped)} not run", *skipped])


def main() -> None:
    """Check, renew or count the pages that are named."""
    parser = argparse.ArgumentParser(description="Run the code of pages.")
    parser.add_argument("pages", nargs="+", type=lambda name: Path(name).resolve())
    parser.add_argument("--renew", action="store_true", help="write the output into the pages")
    parser.add_argument("--count", action="store_true", help="only say which blocks run")
    arguments = parser.parse_args()
    for page in arguments.pages:
        if arguments.count:
            print(count(page))
            continue
        with tempfile.TemporaryDirectory() as directory:
            os.environ["LOCKSTEP_STORAGE"] = str(Path(directory, "results"))
            os.environ["PYTHONPATH"] = str(ROOT / "src")
            os.chdir(directory)
            (renew if arguments.renew else check)(page)
            os.chdir(ROOT)
        print(f"{page.name}: ok")


if __name__ == "__main__":
    main()
