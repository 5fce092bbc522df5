"""Draw where a run's time went as an SVG: a line for each rank, a box for each account.

    python scripts/draw_ledger.py RUN docs/images/ledger.svg [FIRST LAST]

It reads the run's journal. FIRST and LAST are the reports between which to draw.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lockstep.journal.lookup import find_run
from lockstep.journal.records import RunRecords
from lockstep.ledger import read_ledger

COLOURS = {
    "compute": "#2f855a",
    "data": "#b7791f",
    "ranks": "#c53030",
    "communication": "#805ad5",
    "checkpoint": "#3273b8",
    "reporting": "#4a5568",
    "starting": "#a0aec0",
    "restarting": "#718096",
    "lost": "#742a2a",
    "idle": "#cbd5e0",
}
WIDTH, LEFT, ROW, TOP = 760, 70, 30, 40


def draw(run: str, first: int, last: int) -> str:
    """The SVG of the reports ``first`` to ``last``."""
    ledger = read_ledger(RunRecords(find_run(run, pieces=True)))
    shown = [one for one in ledger.intervals() if one.index and first <= one.index <= last]
    total = sum(one.seconds for one in shown)
    ranks = range(len(shown[0].busy))
    scale = (WIDTH - LEFT - 10) / total
    used: set[str] = set()
    body = []
    for rank in ranks:
        y, x = TOP + rank * ROW, float(LEFT)
        body.append(f'<text x="8" y="{y + 15}">rank {rank}</text>')
        for one in shown:
            for account, seconds in one.split()[rank].items():
                width = seconds * scale
                if width >= 0.3:
                    used.add(account)
                    colour = COLOURS[account]
                    body.append(
                        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="20" '
                        f'fill="{colour}"><title>{account}: {seconds:.3f} s</title></rect>'
                    )
                x += width
            body.append(f'<path d="M{x:.1f} {y - 3}v26" stroke="#1f2933"/>')
    bottom = TOP + len(ranks) * ROW + 24
    x = LEFT
    for account in (name for name in COLOURS if name in used):
        body.append(
            f'<rect x="{x}" y="{bottom - 10}" width="12" height="12" fill="{COLOURS[account]}"/>'
        )
        body.append(f'<text x="{x + 17}" y="{bottom}">{account}</text>')
        x += 34 + 8 * len(account)
    title = f"Reports {first} to {last}, {total:.2f} s: where the time of each rank went"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 14}" '
        f'width="{WIDTH}" role="img"><title>{title}</title>'
        "<style>text{font:13px system-ui,sans-serif;fill:#1f2933}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/><text x="8" y="20">{title}</text>'
        + "\n".join(body)
        + "</svg>\n"
    )


if __name__ == "__main__":
    place, file = sys.argv[1:3]
    span = [int(text) for text in sys.argv[3:5]] or [1, 10]
    Path(file).write_text(draw(place, *span), encoding="utf-8")
