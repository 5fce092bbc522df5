"""Draw the charts of ``docs/benchmarks.md`` from the pages in ``benchmarks/results``.

    python scripts/charts.py        # renews docs/images/bench-*.svg

One chart a question, one group of bars a row of its table. The bars of a group share a scale that
begins at zero. ``tests/test_charts.py`` compares the pictures with the results.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
QUESTIONS = ("startup", "recovery", "reporting", "checkpointing", "ddp", "memory", "data", "tune")
STEPS = {"ms": 1e-3, "µs": 1e-6}
WIDTH, LABEL, BAR = 760, 230, 330


def groups_of(page: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was measured, with the systems and their figures, of the table in a results page."""
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) != 6 or cells[0] == "what" or "--" in cells[0]:
            continue
        what, ours, peer, theirs, *_ = cells
        if what:
            groups.append((what, [("lockstep", ours)]))
        if theirs and not theirs.startswith("–"):  # which was not measured
            groups[-1][1].append((peer, theirs))
    return [(what, bars) for what, bars in groups if len(bars) > 1]


def size_of(figure: str) -> float:
    """``0.17 s`` and ``5,433 /s`` as numbers; seconds for what is in milliseconds."""
    number, _, unit = figure.partition(" ")
    return float(number.replace(",", "")) * STEPS.get(unit, 1.0)


def chart_of(page: str) -> str:
    """The SVG of a results page."""
    parts, y = [], 16
    for what, bars in groups_of(page):
        y += 18
        better = "more is better" if bars[0][1].endswith("/s") else "less is better"
        parts.append(f'<text x="16" y="{y}" class="w">{escape(what)}</text>')
        parts.append(f'<text x="{WIDTH - 16}" y="{y}" class="n" text-anchor="end">{better}</text>')
        longest = max(size_of(figure) for _, figure in bars)
        for system, figure in bars:
            y += 22
            width = max(2.0, BAR * size_of(figure) / longest)
            kind = "o" if system == "lockstep" else "p"
            name = escape(re.sub(r"^itself, ", "lockstep, ", system))
            parts.append(f'<text x="{LABEL}" y="{y}" text-anchor="end">{name}</text>')
            parts.append(
                f'<rect x="{LABEL + 10}" y="{y - 12}" width="{width:.0f}" height="15" rx="2" '
                f'class="{kind}"/>'
            )
            parts.append(f'<text x="{LABEL + 18 + width:.0f}" y="{y}">{escape(figure)}</text>')
        y += 14
    title = escape(page.splitlines()[0].lstrip("# "))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" width="{WIDTH}" '
        f'role="img"><title>{title}</title><style>text{{font:13px system-ui,sans-serif;'
        "fill:#1f2933}.w{font-weight:600}.n{font-size:11px;fill:#52606d}.o{fill:#2f855a}"
        f'.p{{fill:#9aa5b1}}</style><rect width="{WIDTH}" height="{y + 10}" rx="10" '
        'fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def charts() -> dict[Path, str]:
    """Each picture and its text."""
    return {
        IMAGES / f"bench-{name}.svg": chart_of((RESULTS / f"{name}.md").read_text("utf-8"))
        for name in QUESTIONS
    }


if __name__ == "__main__":
    for file, text in charts().items():
        file.write_text(text, encoding="utf-8")
        print(file)
