"""The code blocks of the pages that the API comes from: cut out of them, kept, completed.

The pages are parts of Ray's documentation (Apache License 2.0). ``page_blocks.txt`` has their code
blocks, and nothing else of them, so that a checkout without the pages can run them.

    python tests/integration/porting/page_blocks.py DIRECTORY    # renews it from the pages there
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

KEPT = Path(__file__).with_name("page_blocks.txt")
PAGES = Path(__file__).resolve().parents[4] / "shared" / "seeds"
"""Where the pages are, on a machine that has them."""

_DIRECTIVE = re.compile(r"^( *)\.\. code-block::\s*(\w*)$")
_HEADER = re.compile(r"^=== (\d{3}:\d+) (\w+)$", re.MULTILINE)


def cut(directory: Path) -> dict[str, tuple[str, str]]:
    """``page:line`` of each code block → its language and its text. Commented-out ones are not."""
    found: dict[str, tuple[str, str]] = {}
    for page in sorted(directory.glob("*.txt")):
        lines = page.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            directive = _DIRECTIVE.match(line)
            if not directive:
                continue
            indent = len(directive[1])
            body = []
            for inner in lines[number + 1 :]:
                if inner.strip() and len(inner) - len(inner.lstrip()) <= indent:
                    break
                body.append(inner)
            while body and (not body[0].strip() or body[0].strip().startswith(":")):
                del body[0]
            text = textwrap.dedent("\n".join(body)).strip("\n") + "\n"
            name = f"{page.name[:3]}:{number + 1}"
            found[name] = (directive[2] or "python", text)
    return found


def kept() -> dict[str, tuple[str, str]]:
    """The same, from the file beside this one."""
    parts = _HEADER.split(KEPT.read_text(encoding="utf-8"))
    triples = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return {name: (language, text[1:-1]) for name, language, text in triples}


def after_the_change(diff: str) -> str:
    """The code that a diff of the pages leads to. Some leave out the space before what stays."""
    lines = [line for line in diff.splitlines() if not line.startswith("-")]
    others = [line for line in lines if line and line[0] != "+"]
    if others and all(line[0] == " " for line in others):
        return "\n".join(line[1:] for line in lines) + "\n"
    return "\n".join(re.sub(r"^\+(?= )", " ", line).removeprefix("+") for line in lines) + "\n"


if __name__ == "__main__":
    blocks = cut(Path(sys.argv[1]))
    KEPT.write_text(
        "".join(f"=== {name} {language}\n{text}\n" for name, (language, text) in blocks.items()),
        encoding="utf-8",
    )
    print(f"{KEPT}: {len(blocks)} blocks")
