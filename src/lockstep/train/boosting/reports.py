"""What the callbacks of boosted trees share: which metrics to report, when to save."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint import Checkpoint
from lockstep.checks import check_int
from lockstep.run_layout import scratch_prefix
from lockstep.train import api
from lockstep.train.worker import session

if TYPE_CHECKING:
    from typing_extensions import Self

    from lockstep.data.preprocessor import Preprocessor

__all__ = ["BoosterCheckpoint", "BoosterReporter", "Metrics", "MetricsChoice", "WithoutModel"]

Metrics = str | Sequence[str] | Mapping[str, str]
"""A name, names, or a dict from the name to report to the library's own."""


class MetricsChoice:
    """Which of a library's metrics to report, and under which names; None: all of them.

    Raises:
        TypeError: ``metrics`` are not names.
    """

    def __init__(self, owner: str, metrics: Metrics | None) -> None:
        self._owner = owner
        self._warned: set[str] = set()
        self._names: dict[str, str] | None = None
        if metrics is not None:
            if isinstance(metrics, Mapping):
                self._names = dict(metrics)
            else:
                names = [metrics] if isinstance(metrics, str) else metrics
                self._names = {name: name for name in names}
            if not all(isinstance(name, str) for pair in self._names.items() for name in pair):
                raise TypeError(f"{owner}(metrics={metrics!r}): expected names of metrics.")

    def of(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics to report. A missing one is left out, with one warning."""
        if self._names is None:
            return dict(found)
        missing = {name for name in self._names.values() if name not in found} - self._warned
        if missing:
            self._warned |= missing
            warnings.warn(
                f"{self._owner}(metrics=…): there is no {sorted(missing)[0]!r} yet, only "
                f"{sorted(found)}; it is not reported.",
                stacklevel=2,
            )
        return {key: found[name] for key, name in self._names.items() if name in found}


class BoosterReporter:
    """Reports after each boosting iteration, for libraries of boosted trees.

    Args:
        metrics: which of the evaluation results to report: a name such as ``"valid-logloss"``
            (the data's name and the metric's), a list of names, or a dict from the name to report
            to that; by default all of them.
        filename: the model's file in the checkpoint.
        frequency: save the model after every n-th iteration; 0: at the end only.
        checkpoint_at_end: also save the model after the last iteration.
        results_postprocessing_fn: turns the evaluation results into the metrics to report.
    """

    default_filename = "model"

    def __init__(
        self,
        metrics: Metrics | None = None,
        filename: str | None = None,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self._choice = MetricsChoice(name, metrics)
        self._filename = filename or self.default_filename
        self._frequency = check_int(f"{name}(frequency={frequency!r})", frequency)
        self._at_end = checkpoint_at_end
        self._postprocess = results_postprocessing_fn or dict
        self._is_saved = False

    def report(
        self, iteration: int, found: dict[str, Any], save: Callable[[str], Any] | None
    ) -> None:
        """Report an iteration, from 0; ``save`` writes the model to a path, if there is one."""
        metrics = self._choice.of(self._postprocess(found))
        self._is_saved = self._frequency > 0 and (iteration + 1) % self._frequency == 0
        if save is None or not self._is_saved or api.world_rank() != 0:
            api.report(metrics)
            return
        with tempfile.TemporaryDirectory(prefix=scratch_prefix("booster")) as directory:
            save(os.path.join(directory, self._filename))
            api.report(metrics, checkpoint=Checkpoint(directory))

    def end(self, save: Callable[[str], Any] | None) -> None:
        """Save the model after the last iteration; it belongs to the last report."""
        current = session.current()
        if save is None or current is None or self._is_saved or not self._at_end:
            return
        with tempfile.TemporaryDirectory(prefix=scratch_prefix("booster")) as directory:
            save(os.path.join(directory, self._filename))
            current.save_checkpoint(Checkpoint(directory), of_last_report=True)


class BoosterCheckpoint(Checkpoint):
    """A base class for checkpoints that hold the model of a booster."""

    MODEL_FILENAME = BoosterReporter.default_filename

    @classmethod
    def from_model(
        cls,
        booster: Any,
        *,
        preprocessor: Preprocessor | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Write the booster to ``path``, a new directory by default, and return the checkpoint.

        ``get_preprocessor()`` returns the ``preprocessor``.
        """
        directory = tempfile.mkdtemp(prefix="checkpoint-") if path is None else os.fspath(path)
        os.makedirs(directory, exist_ok=True)
        booster.save_model(os.path.join(directory, cls.MODEL_FILENAME))
        checkpoint = cls(directory)
        if preprocessor is not None:
            checkpoint.set_preprocessor(preprocessor)
        return checkpoint


class WithoutModel(BoosterReporter):
    """A base class for callbacks that report metrics only."""

    def __init__(
        self,
        metrics: Metrics | None = None,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            metrics, checkpoint_at_end=False, results_postprocessing_fn=results_postprocessing_fn
        )
