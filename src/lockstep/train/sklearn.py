"""Missing here: importing this module names the replacement. See ``lockstep.missing``."""

from __future__ import annotations

from lockstep.missing import raise_missing_module

raise_missing_module(__name__)
