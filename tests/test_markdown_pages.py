"""``llms.txt``: which pages there are, in sections."""

from __future__ import annotations

from scripts import markdown_pages


def test_pages_are_in_sections() -> None:
    text = markdown_pages.listing(
        {
            "AGENTS": "For coding assistants",
            "docs/decisions/0001-fork-server": "Workers are forked",
            "docs/how-to/gpus": "Use GPUs",
            "docs/tutorial": "Tutorial",
        }
    )
    assert text.startswith("# lockstep\n\n> ")
    assert text.endswith(
        "## Start\n\n- [For coding assistants](AGENTS.md)\n- [Tutorial](docs/tutorial.md)\n\n"
        "## How-to guides\n\n- [Use GPUs](docs/how-to/gpus.md)\n\n"
        "## Optional\n\n- [Workers are forked](docs/decisions/0001-fork-server.md)\n"
    )
