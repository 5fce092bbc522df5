"""Which checkpoints are best and which may be deleted: pure decisions over their records."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from lockstep.config import CheckpointConfig

__all__ = ["PENDING", "CheckpointRecord", "surplus", "worst_to_best"]


PENDING = "PENDING_VALIDATION"
"""The status of a checkpoint whose validation was requested and has not ended."""


@dataclass(frozen=True)
class CheckpointRecord:
    """One committed checkpoint."""

    id: int
    name: str
    """Its directory in the run's directory; its address if lockstep did not upload it."""
    index: int
    """How many reports the run had, the one with this checkpoint included."""
    score: float | None
    metrics: dict[str, Any]
    timestamp: int
    uploaded: bool = True
    """False: the user stored it, and ``name`` is its address."""
    iteration: int = 0
    """The ``training_iteration`` of the newest row. An attempt from here continues the count."""
    trained_s: float = 0.0
    """How long the run had trained until then."""
    positions: dict[str, Any] | None = None
    """How far all ranks had read the datasets. An attempt from here resumes there."""
    kind: str | None = None
    """Which subclass of ``Checkpoint`` was reported, and comes back; None: none of lockstep's."""
    validation: dict[str, Any] | None = None
    """Its validation's status, and what was requested or came of it; None: none was requested."""

    @property
    def awaits_validation(self) -> bool:
        """Whether its validation has not ended yet."""
        return self.validation is not None and self.validation.get("status") == PENDING

    def validated(self, written: Mapping[str, Any]) -> CheckpointRecord:
        """The record after its validation, which the journal has ``written``."""
        return replace(
            self,
            metrics={**self.metrics, **written["metrics"]},
            score=written["score"],
            validation={"status": str(written["status"]), "metrics": written["metrics"]},
        )

    @staticmethod
    def of(written: Mapping[str, Any]) -> CheckpointRecord:
        """The record from a journal or a manifest, without the keys of later versions.

        Raises:
            TypeError: a value is missing, or of another type.
        """
        known = {field.name for field in fields(CheckpointRecord)}
        record = CheckpointRecord(**{key: written[key] for key in written if key in known})
        for name, kinds in _KINDS.items():
            if not isinstance(getattr(record, name), kinds):
                raise TypeError(f"its {name} is {getattr(record, name)!r}")
        return record


_KINDS: dict[str, tuple[type, ...]] = {
    "id": (int,),
    "name": (str,),
    "index": (int,),
    "score": (int, float, type(None)),
    "metrics": (dict,),
    "timestamp": (int, float),
    "uploaded": (bool,),
    "iteration": (int,),
    "trained_s": (int, float),
    "positions": (dict, type(None)),
    "kind": (str, type(None)),
    "validation": (dict, type(None)),
}


def _quality(record: CheckpointRecord, config: CheckpointConfig) -> tuple[float, int]:
    if config.checkpoint_score_attribute is None:
        return (0.0, record.id)
    score = record.score
    if score is None or math.isnan(score):
        return (-math.inf, record.id)
    signed = score if config.checkpoint_score_order == "max" else -score
    # A score of -inf is still better than a missing score, which is ranked as -inf above.
    return (max(signed, -sys.float_info.max), record.id)


def worst_to_best(
    records: Sequence[CheckpointRecord], config: CheckpointConfig
) -> list[CheckpointRecord]:
    """The records that the config keeps, from worst to best. Of equals, the later is better."""
    ranked = sorted(records, key=lambda record: _quality(record, config))
    if config.num_to_keep is None:
        return ranked
    return ranked[max(0, len(ranked) - config.num_to_keep) :]


def surplus(
    records: Sequence[CheckpointRecord], config: CheckpointConfig, *, ended: bool
) -> list[CheckpointRecord]:
    """The records that may be deleted now.

    The newest stays, to restart from; only a run that has ended and keeps none deletes it. While
    no checkpoint has the score that ranks them, all stay: the name of the score may be misspelt,
    and a deletion cannot be undone.
    """
    if config.num_to_keep is None or not records:
        return []
    unscored = all(record.score is None for record in records)
    if config.checkpoint_score_attribute is not None and unscored and config.num_to_keep > 0:
        return []
    kept = {record.id for record in worst_to_best(records, config)}
    # Without the newest checkpoint a failed run would start over, however bad its score is.
    if not (ended and config.num_to_keep == 0):
        kept.add(max(record.id for record in records))
    return [record for record in records if record.id not in kept]
