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

# What opens the site: the pages are below docs/, as in the repository.
HOME = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'


def write(app: Any, exception: Exception | None) -> None:
    """Called by Sphinx when a build is finished."""
    if exception is not None or app.builder.name != "html":
        return
    source, site = Path(app.srcdir), Path(app.outdir)
    (site / "index.html").write_text(HOME, encoding="utf-8")
    lines = [ABOUT]
    for name in sorted(app.env.found_docs):
        page = source / f"{name}.md"
        if page.exists():
            target = site / f"{name}.md"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, target)
            lines.append(f"- [{_title(page)}]({name}.md)")
    (site / "docs/reference/api.md").write_text(api_pages.markdown(), encoding="utf-8")
    lines.append("- [API: everything public](docs/reference/api.md)")
    shutil.copyfile(source / "AGENTS.md", site / "AGENTS.md")
    lines.append("- [For coding assistants](AGENTS.md)")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _title(page: Path) -> str:
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else page.stem
