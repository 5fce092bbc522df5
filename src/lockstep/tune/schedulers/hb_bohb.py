"""HyperBandForBOHB: HyperBand with the brackets of BOHB."""

from __future__ import annotations

from lockstep.tune.schedulers.hyperband import HyperBandScheduler

__all__ = ["HyperBandForBOHB"]


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand, for the searcher ``TuneBOHB``. The arguments are ``HyperBandScheduler``'s.

    ``TuneBOHB`` learns from all trials that reached an iteration at which this scheduler stops
    some.
    """
