"""Keras: a callback that reports metrics and checkpoints while ``model.fit`` runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from lockstep.checks import is_int
from lockstep.run_layout import SNAPSHOT_PREFIX
from lockstep.train import api
from lockstep.train.tensorflow.checkpoint import MODEL_FILE, TensorflowCheckpoint
from lockstep.train.tensorflow.config import check_installed

__all__ = ["Callback", "ReportCheckpointCallback"]

_EVENTS = (
    "epoch_begin",
    "epoch_end",
    *(
        f"{phase}_{moment}"
        for phase in ("train", "test", "predict")
        for moment in ("begin", "end", "batch_begin", "batch_end")
    ),
)


class ReportCheckpointCallback:
    """Reports Keras's logs, and a checkpoint of the model, at the given events.

    An instance is a ``tf.keras.callbacks.Callback`` of the version of Keras that is in use where
    it is created. Create it inside the training function, and pass it to ``model.fit`` on every
    rank. The checkpoint is a ``TensorflowCheckpoint``, a directory with ``model.keras``;
    ``get_model()`` loads it.

    Args:
        checkpoint_on: the event or events at which to save, such as ``"epoch_end"`` or
            ``"train_batch_end"``: Keras's hooks without ``on_``. Metrics are reported with every
            checkpoint. An empty list: never.
        report_metrics_on: the event or events at which to report metrics.
        metrics: which of Keras's logs to report: a name, a list of names, or a dict from the name
            to report to Keras's; by default all of them.
        frequency: save at every n-th event only; a list has one number for each of
            ``checkpoint_on``.
    """

    _least_frequency = 1

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        *,
        frequency: int | Sequence[int] = 1,
    ) -> None:
        saves = _events("checkpoint_on", checkpoint_on)
        every = _frequencies(frequency, len(saves), self._least_frequency)
        self._every = dict(zip(saves, every, strict=True))
        self._report_on = frozenset(_events("report_metrics_on", report_metrics_on))
        self._names = _names(metrics)
        self._seen: Counter[str] = Counter()
        self._become_callback()
        super().__init__()

    def _become_callback(self) -> None:
        # Keras is chosen and imported only now. Keras prepares logs for the hooks that a class
        # has, so the class gets only the hooks it needs.
        cls: Any = type(self)
        self.__class__ = _on_keras(cls, self._report_on.union(self._every))

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is rebuilt where the object is loaded, perhaps with another version of Keras.
        state = {name: value for name, value in vars(self).items() if name not in _SET_BY_FIT}
        return _rebuild, (type(self).__mro__[1], state)

    def _happened(self, event: str, logs: Mapping[str, Any] | None) -> None:
        self._seen[event] += 1
        every = self._every.get(event, 0)
        if every and self._seen[event] % every == 0:
            self._save_and_report(self._chosen(logs))
        elif event in self._report_on:
            api.report(self._chosen(logs))

    def _chosen(self, logs: Mapping[str, Any] | None) -> dict[str, Any]:
        logs = dict(logs or {})
        if self._names is None:
            return logs
        missing = [name for name in self._names.values() if name not in logs]
        if missing:
            raise ValueError(
                f"ReportCheckpointCallback(metrics=…): Keras logged no {missing[0]!r} here, only "
                f"{sorted(logs)}; name one of those, or compile the model with that metric."
            )
        return {key: logs[name] for key, name in self._names.items()}

    def _save_and_report(self, metrics: dict[str, Any]) -> None:
        # Every rank saves, because saving may combine variables across the ranks; only rank 0
        # reports its model. The directory is beside the checkpoints if possible, so that it is
        # moved there instead of copied.
        parent = api.get_trial_dir()
        directory = tempfile.mkdtemp(
            prefix=f"{SNAPSHOT_PREFIX}keras-", dir=parent if os.path.isdir(parent) else None
        )
        try:
            self.model.save(os.path.join(directory, MODEL_FILE))  # type: ignore[attr-defined]  # set by Keras
            api.report(
                metrics,
                checkpoint=TensorflowCheckpoint(directory) if api.world_rank() == 0 else None,
                delete_local_checkpoint_after_upload=True,
            )
        finally:
            shutil.rmtree(directory, ignore_errors=True)


class Callback(ReportCheckpointCallback):
    """The callback of earlier releases: reports metrics, and maybe a checkpoint, at events.

    Args:
        metrics: see :class:`ReportCheckpointCallback`.
        on: the event or events at which to report.
        frequency: save at every n-th event only, at 0 never; a list has one number for each of
            ``on``.
    """

    _least_frequency = 0

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        on: str | Sequence[str] = "epoch_end",
        frequency: int | Sequence[int] = 1,
    ) -> None:
        super().__init__(on, on, metrics, frequency=frequency)


_SET_BY_FIT = ("model", "_model", "params", "validation_data")


def _rebuild(
    cls: type[ReportCheckpointCallback], state: dict[str, Any]
) -> ReportCheckpointCallback:
    made = cls.__new__(cls)
    vars(made).update(state)
    made._become_callback()
    super(ReportCheckpointCallback, made).__init__()
    vars(made).update(state)
    return made


@cache
def _on_keras(cls: Any, events: frozenset[str]) -> Any:
    """Return a subclass of ``cls`` and of Keras's callback, with hooks for these events."""
    check_installed("ReportCheckpointCallback")
    import tensorflow as tf

    base = tf.keras.callbacks.Callback
    hooks = type("_Hooks", (base,), {f"on_{event}": _hook(event) for event in events})
    named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, hooks), named)


def _hook(event: str) -> Any:
    def at_index(self: Any, index: int, logs: Any = None) -> None:
        self._happened(event, logs)

    def once(self: Any, logs: Any = None) -> None:
        self._happened(event, logs)

    return at_index if "epoch" in event or "batch" in event else once


def _events(argument: str, given: str | Sequence[str]) -> list[str]:
    events = [given] if isinstance(given, str) else list(given)
    for event in events:
        if event not in _EVENTS:
            raise ValueError(
                f"ReportCheckpointCallback({argument}={given!r}): Keras has no event {event!r}; "
                f"expected some of {', '.join(_EVENTS)}."
            )
    return events


def _frequencies(given: int | Sequence[int], count: int, least: int) -> list[int]:
    every = [given] * count if isinstance(given, int) else list(given)
    valid = all(is_int(n) and n >= least for n in every)
    if not valid or len(every) != count or isinstance(given, bool):
        raise ValueError(
            f"ReportCheckpointCallback(frequency={given!r}): expected an integer above "
            f"{least - 1}, or one for each of the {count} event(s) of checkpoint_on."
        )
    return every


def _names(given: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        names = dict(given)
    else:
        names = {name: name for name in ([given] if isinstance(given, str) else given)}
    if not all(isinstance(name, str) for pair in names.items() for name in pair):
        raise TypeError(f"ReportCheckpointCallback(metrics={given!r}): expected names of metrics.")
    return names
