"""The site's pages as Markdown beside the HTML, and ``llms.txt``, which lists them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from scripts import api_pages

ABOUT = """\
# lockstep

> Distributed training on plain processes, with the API of Ray Train, Tune and Data, on one machine
> and without a cluster. `pip install 'lockstep-train[torch]'`, `import lockstep`.

Every page of the site as Markdown. AGENTS.md says how to drive lockstep from a program.
"""

# The sections of llms.txt: a page is in the first that matches. What is "Optional" may be left out.
SECTIONS = {
    "Start": r"AGENTS$|docs/(index|install|tutorial|questions)$",
    "How-to guides": r"docs/(how-to/|torch$|ray-cluster$|warm-starts$|dashboard$)",
    "Concepts": r"docs/(concepts/|guarantees$|trust$|where-the-time-went$)",
    "Coming from other libraries": r"docs/(coming-from/|compatibility$)",
    "Data": r"docs/data/",
    "Tune": r"docs/tune/",
    "Tracking": r"docs/tracking/",
    "Reference": r"docs/(reference/|command-line$|versions$)",
    "Optional": r"",
}

# What opens the site: the pages are below docs/, as in the repository.
HOME = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'


def write(app: Any, exception: Exception | None) -> None:
    """Called by Sphinx when a build is finished."""
    if exception is not None or app.builder.name != "html":
        return
    source, site = Path(app.srcdir), Path(app.outdir)
    (site / "index.html").write_text(HOME, encoding="utf-8")
    titles = {"AGENTS": "For coding assistants", "docs/reference/api": "API: everything public"}
    for name in sorted(app.env.found_docs):
        page = source / f"{name}.md"
        if page.exists():
            target = site / f"{name}.md"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, target)
            titles[name] = _title(page)
    (site / "docs/reference/api.md").write_text(api_pages.markdown(), encoding="utf-8")
    shutil.copyfile(source / "AGENTS.md", site / "AGENTS.md")
    (site / "llms.txt").write_text(listing(titles), encoding="utf-8")


def listing(titles: dict[str, str]) -> str:
    """The text of ``llms.txt``, of the pages' names and titles."""
    found: dict[str, list[str]] = {section: [] for section in SECTIONS}
    for name, title in titles.items():
        section = next(one for one, names in SECTIONS.items() if re.match(names, name))
        found[section].append(f"- [{title}]({name}.md)")
    parts = [f"## {section}\n\n" + "\n".join(lines) for section, lines in found.items() if lines]
    return "\n\n".join([ABOUT.rstrip(), *parts]) + "\n"


def _title(page: Path) -> str:
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else page.stem
