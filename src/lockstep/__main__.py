"""``python -m lockstep``: the ``lockstep`` command."""

from __future__ import annotations

import sys

from lockstep.cli import main

sys.exit(main())
