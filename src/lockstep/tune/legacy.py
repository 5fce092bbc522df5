"""``tune.run``, for scripts that were written before ``Tuner``."""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointConfig, FailureConfig, RunConfig
from lockstep.errors import TrainingFailedError
from lockstep.run_layout import scratch_prefix
from lockstep.train.api import session_for
from lockstep.train.trainer import BaseTrainer
from lockstep.train.worker.session import current
from lockstep.tune.analysis import AnalysedTrial, ExperimentAnalysis
from lockstep.tune.compat import ResumeConfig
from lockstep.tune.experiment.spec import Experiment
from lockstep.tune.parameters import with_checkpoint, with_resources
from lockstep.tune.registry import registered_trainable
from lockstep.tune.schedulers import TrialScheduler, create_scheduler
from lockstep.tune.search import Searcher, create_searcher
from lockstep.tune.tune_config import TuneConfig
from lockstep.tune.tuner import Tuner

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["ExperimentAnalysis", "checkpoint_dir", "is_session_enabled", "run", "run_experiments"]


def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Any = None,
    time_budget_s: float | datetime.timedelta | None = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    storage_path: str | Path | None = None,
    local_dir: str | Path | None = None,
    storage_filesystem: pyarrow.fs.FileSystem | None = None,
    search_alg: Searcher | str | None = None,
    scheduler: TrialScheduler | str | None = None,
    checkpoint_config: CheckpointConfig | None = None,
    keep_checkpoints_num: int | None = None,
    checkpoint_score_attr: str | None = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool = False,
    verbose: int = 1,
    callbacks: Sequence[Any] = (),
    max_failures: int = 0,
    fail_fast: Any = False,
    resume: bool | str = False,
    resume_config: ResumeConfig | None = None,
    restore: str | os.PathLike[str] | Checkpoint | None = None,
    reuse_actors: bool | None = None,
    raise_on_failed_trial: bool = True,
    trial_name_creator: Callable[[Any], str] | None = None,
    trial_dirname_creator: Callable[[Any], str] | None = None,
    chdir_to_trial_dir: bool | None = None,
    max_concurrent_trials: int | None = None,
    progress_reporter: Any = None,
    log_to_file: Any = False,
    sync_config: Any = None,
) -> ExperimentAnalysis:
    """Run trials: the older spelling of ``Tuner(…).fit()``.

    Args:
        run_or_experiment: what ``Tuner`` takes, or an ``Experiment``, whose own arguments come
            before those given here.
        name: the experiment's directory in ``storage_path`` (``local_dir`` is its older name).
        config: ``Tuner``'s ``param_space``.
        resources_per_trial: as for ``tune.with_resources``.
        checkpoint_config: or the older arguments ``keep_checkpoints_num``,
            ``checkpoint_score_attr`` (``"min-loss"`` for the smallest), ``checkpoint_freq`` and
            ``checkpoint_at_end``.
        search_alg, scheduler: objects, or the names that ``tune.create_searcher`` and
            ``tune.create_scheduler`` know.
        resume: True or ``"AUTO"`` resumes an unfinished experiment of this name;
            ``"AUTO+ERRORED"`` its failed trials, too, ``"AUTO+RESTART_ERRORED"`` restarts them, and
            ``"ERRORED_ONLY"`` and ``"RESTART_ERRORED_ONLY"`` leave the others as they are.
        resume_config: which of its trials to resume.
        restore: a checkpoint, or its path: every trial starts from it.
        raise_on_failed_trial: raise if a trial has failed.
        metric, mode, stop, time_budget_s, num_samples, verbose, callbacks, max_failures, fail_fast,
            reuse_actors, trial_name_creator, trial_dirname_creator, chdir_to_trial_dir,
            max_concurrent_trials, storage_filesystem, progress_reporter, log_to_file,
            sync_config: see ``TuneConfig``, ``RunConfig`` and ``FailureConfig``.

    Raises:
        TrainingFailedError: trials have failed; ``.worker_failures`` has their errors by number.
    """
    if isinstance(run_or_experiment, Experiment):
        given = {key: value for key, value in locals().items() if key != "run_or_experiment"}
        return run(
            run_or_experiment.run,
            **{**given, "name": run_or_experiment.name, **run_or_experiment.options},
        )
    if storage_path is not None and local_dir is not None:
        raise ValueError("tune.run(local_dir=…) is the older name of storage_path; give one.")
    trainable = run_or_experiment
    if isinstance(trainable, str):
        trainable = registered_trainable(trainable)
    if resources_per_trial is not None:
        trainable = with_resources(trainable, resources_per_trial)
    if restore is not None:
        trainable = _starting_from(trainable, restore)
    resume_config = resume_config or _resume_config(resume)
    if resume and name is None and not str(resume).upper().startswith("AUTO"):
        raise ValueError(f"tune.run(resume={resume!r}) needs name=…, of the experiment to resume.")
    kept = checkpoint_config or _older_checkpoint_config(
        keep_checkpoints_num, checkpoint_score_attr, checkpoint_freq, checkpoint_at_end
    )
    run_config = RunConfig(
        name=name,
        storage_path=storage_path or local_dir,
        storage_filesystem=storage_filesystem,
        failure_config=FailureConfig(max_failures=max_failures, fail_fast=fail_fast),
        checkpoint_config=kept,
        callbacks=tuple(callbacks or ()),
        stop=stop,
        verbose=verbose,  # type: ignore[arg-type]  # checked there
        progress_reporter=progress_reporter,
        log_to_file=log_to_file,
        sync_config=sync_config,
        resume="auto" if resume and name is not None else "never",
    )
    tune_config = TuneConfig(
        metric=metric,
        mode=mode,
        search_alg=create_searcher(search_alg) if isinstance(search_alg, str) else search_alg,
        scheduler=create_scheduler(scheduler) if isinstance(scheduler, str) else scheduler,
        num_samples=num_samples,
        max_concurrent_trials=max_concurrent_trials,
        time_budget_s=time_budget_s,
        reuse_actors=reuse_actors,
        trial_name_creator=trial_name_creator,
        trial_dirname_creator=trial_dirname_creator,
        chdir_to_trial_dir=chdir_to_trial_dir,
    )
    tuner = Tuner(trainable, param_space=config, tune_config=tune_config, run_config=run_config)
    if resume_config is not None:
        tuner.resume_with(resume_config.resumption())
    analysis = ExperimentAnalysis(tuner.fit(), metric, mode, param_space=config)
    if raise_on_failed_trial and analysis.grid.num_errors:
        failed = {
            index: error
            for index, result in enumerate(analysis.grid)
            if (error := result.error) is not None
        }
        first = next(iter(failed.values()), None)
        raise TrainingFailedError(
            f"{analysis.grid.num_errors} of {len(analysis.grid)} trials failed, the first with "
            f"{type(first).__name__}: {first}; they are in {analysis.experiment_path}, and "
            "raise_on_failed_trial=False returns the results of the others.",
            failed,
        ) from first
    return analysis


def _starting_from(trainable: Any, restore: str | os.PathLike[str] | Checkpoint) -> Any:
    checkpoint = restore if isinstance(restore, Checkpoint) else Checkpoint(restore)
    checkpoint.files()  # raises where there is nothing
    if isinstance(trainable, BaseTrainer):
        return trainable.as_trainable().with_changes(resume_from_checkpoint=checkpoint)
    return with_checkpoint(trainable, checkpoint)


@contextlib.contextmanager
def checkpoint_dir(step: int | None = None) -> Iterator[str]:
    """The way to save a checkpoint before Ray 2.0: a directory that becomes a checkpoint.

    ``with tune.checkpoint_dir(step) as directory: …`` in a function ``f(config,
    checkpoint_dir=None)``, which gets the newest checkpoint's directory when it resumes.

    Args:
        step: without effect: checkpoints are numbered.
    """
    with tempfile.TemporaryDirectory(prefix=scratch_prefix("checkpoint")) as directory:
        yield directory
        session_for("checkpoint_dir()").save_checkpoint(Checkpoint.from_directory(directory))


def is_session_enabled() -> bool:
    """Whether this is a training function's process."""
    return current() is not None


def run_experiments(
    experiments: Experiment | Sequence[Experiment] | Mapping[str, Mapping[str, Any]],
    **kwargs: Any,
) -> list[AnalysedTrial]:
    """Run experiments one after the other, and return the trials of all.

    Args:
        experiments: one, several, or a dict of their names and arguments.
        kwargs: arguments of ``tune.run`` for all of them.
    """
    if isinstance(experiments, Experiment):
        experiments = [experiments]
    elif isinstance(experiments, Mapping):
        experiments = [Experiment.from_json(name, dict(e)) for name, e in experiments.items()]
    return [trial for one in experiments for trial in run(one, **kwargs).trials]


_RESUME = ResumeConfig.ResumeType.RESUME
_RESTART = ResumeConfig.ResumeType.RESTART
_SKIP = ResumeConfig.ResumeType.SKIP
_RESUMED: dict[str, ResumeConfig] = {
    "ERRORED": ResumeConfig(errored=_RESUME),
    "RESTART_ERRORED": ResumeConfig(errored=_RESTART),
    "ERRORED_ONLY": ResumeConfig(unfinished=_SKIP, errored=_RESUME),
    "RESTART_ERRORED_ONLY": ResumeConfig(unfinished=_SKIP, errored=_RESTART),
}


def _resume_config(resume: bool | str | None) -> ResumeConfig | None:
    """Which trials ``resume="AUTO+ERRORED"`` and the other strings mean."""
    if not resume or resume is True:
        return None
    first, *others = str(resume).upper().split("+")
    if first in _RESUMED:
        others = [first, *others]
    elif first not in ("AUTO", "LOCAL", "REMOTE", "PROMPT"):
        others = ["?"]
    if not set(others) <= set(_RESUMED):
        raise ValueError(
            f"tune.run(resume={resume!r}): expected True, False or 'AUTO', and after a '+' one of "
            f"{', '.join(_RESUMED)}."
        )
    return _RESUMED[others[-1]] if others else None


def _older_checkpoint_config(
    keep: int | None, attribute: str | None, frequency: int, at_end: bool
) -> CheckpointConfig:
    attribute = attribute or ""
    return CheckpointConfig(
        num_to_keep=keep,
        checkpoint_score_attribute=attribute.removeprefix("min-") or None,
        checkpoint_score_order="min" if attribute.startswith("min-") else "max",
        checkpoint_frequency=frequency,
        checkpoint_at_end=at_end or None,
    )
