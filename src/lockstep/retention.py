"""Which checkpoints are best and which may go: pure decisions over their records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lockstep.config import CheckpointConfig

__all__ = ["CheckpointRecord", "best_first_last", "surplus"]


@dataclass(frozen=True)
class CheckpointRecord:
    """One committed checkpoint."""

    id: int
    name: str
    """Its directory in the run's own; for one that was not uploaded by lockstep, where it lies."""
    index: int
    """How many reports the run had seen with the one that carried it."""
    score: float | None
    metrics: dict[str, Any]
    timestamp: int
    uploaded: bool = True
    """False: it lies where the user put it."""
    iteration: int = 0
    """The ``training_iteration`` of the newest row: an attempt from this checkpoint counts on."""
    trained_s: float = 0.0
    """How long the run had trained by then."""
    positions: dict[str, Any] | None = None
    """How far all ranks had read the datasets: an attempt from this checkpoint resumes there."""

    @staticmethod
    def of(written: Mapping[str, Any]) -> CheckpointRecord:
        """The record that was written, without what only a later version knows."""
        known = {field.name for field in fields(CheckpointRecord)}
        return CheckpointRecord(**{key: written[key] for key in written if key in known})


def _quality(record: CheckpointRecord, config: CheckpointConfig) -> tuple[float, int]:
    if config.checkpoint_score_attribute is None:
        return (0.0, record.id)
    score = record.score
    if score is None or math.isnan(score):
        return (-math.inf, record.id)
    # A real -inf still beats a score that is missing; it can't beat it by value, so nudge it.
    signed = score if config.checkpoint_score_order == "max" else -score
    return (max(signed, -1.7976931348623157e308), record.id)


def best_first_last(
    records: Sequence[CheckpointRecord], config: CheckpointConfig
) -> list[CheckpointRecord]:
    """From worst to best, as many as the config keeps. Ties: the later one is better."""
    ranked = sorted(records, key=lambda record: _quality(record, config))
    if config.num_to_keep is None:
        return ranked
    return ranked[max(0, len(ranked) - config.num_to_keep) :]


def surplus(
    records: Sequence[CheckpointRecord], config: CheckpointConfig, *, ended: bool
) -> list[CheckpointRecord]:
    """What may be deleted now. The newest always stays, except after the end with none to keep."""
    if config.num_to_keep is None or not records:
        return []
    kept = {record.id for record in best_first_last(records, config)}
    if not (ended and config.num_to_keep == 0):
        kept.add(max(record.id for record in records))
    return [record for record in records if record.id not in kept]
