"""The public names and signatures are those of ``public_api.txt``."""

from __future__ import annotations

import difflib

from scripts.public_api import FILE, public_api


def test_the_public_surface_is_the_recorded_one() -> None:
    recorded = FILE.read_text(encoding="utf-8").splitlines()
    difference = difflib.unified_diff(
        recorded, public_api().splitlines(), "recorded", "in the code", lineterm="", n=0
    )
    text = "\n".join(difference)
    assert not text, f"public names or signatures changed; if intended, make signatures:\n{text}"
