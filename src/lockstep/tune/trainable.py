"""Trainable: a trial as a class with steps, which runs as an ordinary training function."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lockstep.checkpoint import Checkpoint
from lockstep.errors import StopTraining
from lockstep.run_layout import scratch_prefix
from lockstep.train import api
from lockstep.train.worker import session
from lockstep.tune.parameters import with_parameters, with_resources

__all__ = ["Trainable", "TrainableFunction", "stop_kept", "with_parameters", "with_resources"]


class Trainable:
    """A training in steps. Subclass it and implement ``setup`` and ``step``.

    ::

        setup(config) ─▶ load_checkpoint(…) if there is one
              ╭──▶ step() ─▶ the result is reported ─▶ save_checkpoint(…) when it is due ──╮
              ╰─────────────────────────────────────────────────────────────────────────╯
        cleanup() after step returned done=True or raised, or the trial was stopped

    Args:
        config: the hyperparameters.
    """

    _parameters: tuple[Any, ...] = ()

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config: dict[str, Any] = dict(config or {})
        self._iteration = 0
        self._time_total = 0.0
        bound: dict[str, Any] = {}
        for parameters in self._parameters:
            bound.update(parameters.values)
        self.setup(dict(self.config), **bound)

    # What a subclass implements.

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare: called once, first."""

    def step(self) -> dict[str, Any]:
        """Train a little and return metrics. ``done=True`` among them ends the trial."""
        raise NotImplementedError(f"{type(self).__name__} has to implement step().")

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        """Write files into the directory, or return a dict to save instead."""
        raise NotImplementedError(
            f"{type(self).__name__} has to implement save_checkpoint() to be checkpointed."
        )

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Resume from what ``save_checkpoint`` made: its dict, or the directory's path.

        The dict is exactly the one that was saved, and ``self.iteration`` counts its steps.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has to implement load_checkpoint() to resume from a checkpoint."
        )

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another config without being recreated; False: that is not possible.

        ``TuneConfig(reuse_actors=True)`` calls it, between two trials in one process.
        """
        return False

    def cleanup(self) -> None:
        """Release what ``setup`` took: called once, last."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """The resources of a trial, as for ``tune.with_resources``; None: one CPU."""
        return None

    # What others call.

    def train(self) -> dict[str, Any]:
        """One step, counted and timed."""
        before = self._time_total
        result = self._counted_step()
        return {
            "done": False,
            "training_iteration": self._iteration,
            "time_this_iter_s": self._time_total - before,
            "time_total_s": self._time_total,
            **result,
        }

    def _counted_step(self) -> dict[str, Any]:
        started = time.monotonic()
        result = self.step()
        if not isinstance(result, dict):
            raise TypeError(
                f"{type(self).__name__}.step() returned {result!r}; return a dict of metrics."
            )
        self._iteration += 1
        self._time_total += time.monotonic() - started
        return result

    def save(self, checkpoint_dir: str | None = None) -> Checkpoint:
        """Save into the directory (by default a new temporary one)."""
        if checkpoint_dir is None:
            checkpoint_dir = tempfile.mkdtemp(prefix="lockstep-trainable-")  # the caller's
        os.makedirs(checkpoint_dir, exist_ok=True)
        saved = self.save_checkpoint(checkpoint_dir)
        if isinstance(saved, dict):
            Checkpoint.from_dict(saved).to_directory(checkpoint_dir)
        elif saved is not None and not os.path.realpath(saved).startswith(
            os.path.realpath(checkpoint_dir)
        ):
            raise ValueError(
                f"{type(self).__name__}.save_checkpoint() returned {saved!r}, which is outside of "
                f"{checkpoint_dir!r}; write into that directory."
            )
        checkpoint = Checkpoint(checkpoint_dir)
        checkpoint.update_metadata({"iteration": self._iteration, "time_total_s": self._time_total})
        return checkpoint

    def restore(self, checkpoint: Checkpoint | str) -> None:
        """Resume from what ``save`` made."""
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        metadata = checkpoint.get_metadata()
        # Before load_checkpoint, which may use the count: for a learning rate's schedule, say.
        self._iteration = int(metadata.get("iteration", 0))
        self._time_total = float(metadata.get("time_total_s", 0.0))
        if checkpoint.is_dict:
            self.load_checkpoint(checkpoint.given_dict())
        else:
            with checkpoint.as_directory() as directory:
                self.load_checkpoint(directory)

    def reset(self, new_config: dict[str, Any], storage: Any = None) -> bool:
        """Start over with another config, if ``reset_config`` can; ``storage`` is ignored."""
        if not self.reset_config(dict(new_config)):
            return False
        self.config = dict(new_config)
        self._iteration, self._time_total = 0, 0.0
        return True

    def export_model(self, export_formats: Any, export_dir: str | None = None) -> dict[str, str]:
        """What ``_export_model(formats, directory)`` of a subclass returns: format → file."""
        formats = [export_formats] if isinstance(export_formats, str) else list(export_formats)
        return self._export_model(formats, export_dir or self.logdir)

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        raise NotImplementedError(
            f"{type(self).__name__} has to implement _export_model(formats, directory) to export."
        )

    def delete_checkpoint(self, checkpoint_dir: str | os.PathLike[str]) -> None:
        """Delete the directory that ``save`` made."""
        shutil.rmtree(checkpoint_dir, ignore_errors=True)

    def stop(self) -> None:
        """Clean up: no other method is called afterwards."""
        self.cleanup()

    @property
    def iteration(self) -> int:
        """The number of steps, including those before a restore."""
        return self._iteration

    training_iteration = iteration

    @property
    def trial_id(self) -> str:
        """The trial's id; ``"default"`` outside a trial."""
        return self._context("trial_id") or "default"

    @property
    def trial_name(self) -> str:
        """The trial's name; ``"default"`` outside a trial."""
        return self._context("trial_name") or "default"

    @property
    def logdir(self) -> str:
        """The trial's directory; empty outside a trial."""
        return self._context("trial_dir")

    @property
    def trial_resources(self) -> dict[str, float]:
        """The resources of the trial."""
        current = session.current()
        return current.context.get_trial_resources() if current is not None else {}

    def get_config(self) -> dict[str, Any]:
        """The hyperparameters."""
        return self.config

    @staticmethod
    def _context(name: str) -> str:
        current = session.current()
        return "" if current is None else str(getattr(current.context, name))


class TrainableFunction:
    """A training function that runs a ``Trainable`` class.

    Args:
        cls: the class.
        checkpoint_frequency: save after every n-th step; 0: never.
        checkpoint_at_end: save when the trial is done, or stopped. Pausing always saves.
        keeps: keep the object for ``reset_config``, where the process may run another trial.
    """

    def __init__(
        self,
        cls: type[Trainable],
        checkpoint_frequency: int = 0,
        checkpoint_at_end: bool = False,
        *,
        keeps: bool = False,
    ) -> None:
        self.cls = cls
        self.frequency = checkpoint_frequency
        self.at_end = checkpoint_at_end
        self.keeps = keeps
        self.__name__ = cls.__name__

    def __call__(self, config: dict[str, Any]) -> None:
        """Step until the trial is done or stopped."""
        keeps = self.keeps and can_keep
        trainable = (_kept_with(config) if keeps else None) or self.cls(config)
        try:
            checkpoint = api.get_checkpoint()
            if checkpoint is not None:
                trainable.restore(checkpoint)
            while not self._step(trainable):
                pass
        except BaseException as error:
            if not (keeps and isinstance(error, StopTraining)):
                trainable.stop()
                raise
            _kept.append(trainable)
            raise
        if keeps:
            _kept.append(trainable)
        else:
            trainable.stop()

    def _step(self, trainable: Trainable) -> bool:
        result = dict(trainable._counted_step())
        done = bool(result.get("done"))
        saving = (
            bool(result.pop("should_checkpoint", False))
            or api.checkpoint_requested()
            or (self.frequency > 0 and trainable.iteration % self.frequency == 0)
            or (done and self.at_end)
        )
        try:
            if saving:
                with _saved(trainable) as checkpoint:
                    api.report(result, checkpoint, delete_local_checkpoint_after_upload=True)
            else:
                api.report(result)
        except StopTraining:
            current = session.current()
            if current is not None and not saving and (self.at_end or current.pausing):
                with _saved(trainable) as checkpoint:
                    current.save_checkpoint(checkpoint, of_last_report=True)
            raise
        return done


can_keep = False
"""Whether this process runs one trial after the other, and calls ``stop_kept`` in the end."""

_kept: list[Trainable] = []
"""With ``reuse_actors``: the object of the trial before, at most one."""


def _kept_with(config: dict[str, Any]) -> Trainable | None:
    """The object of the trial before with another config; None: there is none that takes it."""
    if not _kept:
        return None
    try:
        if _kept[-1].reset(config):
            return _kept.pop()
    # Here, before the failure is reported: the driver ends this process then.
    except BaseException:
        stop_kept()
        raise
    stop_kept()
    return None


def stop_kept() -> None:
    """Clean up what is kept for another trial."""
    while _kept:
        _kept.pop().stop()


@contextmanager
def _saved(trainable: Trainable) -> Iterator[Checkpoint]:
    """A trainable's checkpoint in a temporary directory, which is deleted after the report."""
    with tempfile.TemporaryDirectory(
        prefix=scratch_prefix("trainable"), ignore_cleanup_errors=True
    ) as directory:
        yield trainable.save(directory)
