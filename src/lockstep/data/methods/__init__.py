"""The methods of ``Dataset``, a class for each subject; ``dataset`` puts them together.

``base`` is what all of them use. ``grouped``, ``summary`` and ``filenames`` also have what some of
the methods return or take.
"""

from __future__ import annotations

__all__: list[str] = []
