"""What the callbacks for other libraries share, in its older place."""

from __future__ import annotations

from lockstep.train.boosting.reports import BoosterReporter, Metrics, MetricsChoice, WithoutModel

__all__ = ["BoosterReporter", "Metrics", "MetricsChoice", "WithoutModel"]
