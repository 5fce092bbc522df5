"""Journals of runs that never were, with exactly the times that a test asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.journal import Journal
from lockstep.journal.records import RunRecords
from lockstep.ledger import Ledger, read_ledger
from lockstep.storage import open_storage


class Simulation:
    """Writes the journal of a run in which time passes only where a method says so."""

    def __init__(self, directory: Path, size: int = 2) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.size = size
        self.now = 1000.0
        self._journal = Journal(str(directory / "journal.jsonl"))
        self._attempt = self._rows = self._iteration = 0
        self._launched = self._last = 0.0
        self._saved = 0
        self._journal.append(
            "run",
            version=1,
            trial_id="a_00000",
            experiment_id="b",
            experiment_tag="0",
            experiment_name="simulated",
            trainer="T",
            config={},
            checkpoint_config={},
            time=self.now,
        )

    def start(self, seconds: float = 1.0, size: int | None = None) -> None:
        """An attempt whose workers are up after some seconds."""
        self.size = size or self.size
        self.now += seconds
        self._attempt += 1
        self._iteration = self._saved
        self._launched = self._last = self.now
        workers = [{"rank": r, "pid": 1, "hostname": f"host-{r}"} for r in range(self.size)]
        self._journal.append(
            "attempt",
            attempt=self._attempt,
            workers=workers,
            warmup_time=seconds,
            iteration=self._iteration,
            time_before=0.0,
            time=self.now,
        )

    def report(
        self,
        busy: Sequence[float],
        waits: Sequence[dict[str, float]] | None = None,
        *,
        overhead: float = 0.0,
        checkpoint: bool = False,
    ) -> None:
        """A report of ranks that were busy for so long, and no rank for ``overhead`` seconds."""
        self.now += max(busy) + overhead
        self._rows += 1
        self._iteration += 1
        name = f"checkpoint_{self._rows:06d}" if checkpoint else None
        self._journal.append(
            "report",
            index=self._rows,
            attempt=self._attempt,
            attempt_index=self._rows,
            iteration=self._iteration,
            time=self.now,
            time_this_iter=self.now - self._last,
            time_since_start=self.now - self._launched,
            worker_time=int(self.now),
            worker_time_this_iter=0.0,
            checkpoint=name,
            ranks=[{} for _ in busy],
            busy=list(busy),
            **({} if waits is None else {"waits": list(waits)}),
        )
        self._last = self.now
        if checkpoint:
            self._saved = self._iteration
            self._journal.append(
                "checkpoint",
                id=self._rows,
                name=name,
                index=self._rows,
                score=None,
                metrics={},
                timestamp=0,
                iteration=self._iteration,
            )

    def fail(self, seconds: float, *, retry: bool = True) -> None:
        """The attempt fails after some more seconds."""
        self.now += seconds
        self._journal.append(
            "failure",
            attempt=self._attempt,
            message="Rank 1 of 2 failed with ValueError: no.",
            errors=[],
            retry=retry,
            time=self.now,
        )

    def never_up(self, seconds: float, *, retry: bool = True) -> None:
        """An attempt whose workers fail before all of them are up."""
        self._attempt += 1
        self.fail(seconds, retry=retry)

    def restore(self, seconds: float) -> None:
        """Another driver, some seconds later."""
        self.now += seconds
        self._journal.append("restore", restored=self.now, config={}, checkpoint_config={})

    def end(
        self, busy: Sequence[float] = (), exiting: float = 0.0, state: str = "finished"
    ) -> None:
        """The functions return, and the run ends."""
        after: dict[str, Any] = {}
        if busy:
            self.now += max(busy)
            waits: list[dict[str, float]] = [{} for _ in busy]
            returned = self.now - self._launched
            after = {"returned_after": returned, "busy": list(busy), "waits": waits}
        self.now += exiting
        self._journal.append("end", state=state, time=self.now, **after)

    def close(self) -> None:
        """The driver is gone."""
        self._journal.close()

    def ledger(self) -> Ledger:
        """What the journal adds up to."""
        self.close()
        return read_ledger(RunRecords(open_storage(str(self.directory))))
