"""Missing here: importing this module names today's way. See ``lockstep.train.missing``."""

from __future__ import annotations

from lockstep.train.missing import raise_missing_module

raise_missing_module(__name__)
