"""``setup_comet``: a Comet experiment on rank 0, the same one after every restart."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.trackers.comet import comet_arguments, end_experiment, open_experiment
from lockstep.trackers.credentials import check_comet_key, read_key, require
from lockstep.trackers.values import Outcome, flat_parameters, run_key
from lockstep.train.tracking.worker import StandIn, checked_config, tracked_worker, within_time

__all__ = ["setup_comet"]


def setup_comet(
    config: Mapping[str, Any] | None = None,
    *,
    online: bool = True,
    api_key: str | None = None,
    api_key_file: str | os.PathLike[str] | None = None,
    tags: Sequence[str] = (),
    rank_zero_only: bool = True,
    **experiment_kwargs: Any,
) -> Any:
    """Create this run's experiment at Comet, or resume it after a restart.

    Returns Comet's experiment, and on the other ranks a stand-in that does nothing. The key is made
    from the trial's id. When the training function ends, the experiment is ended and its
    ``status`` is the outcome, unless you have called ``end()`` yourself.

    Args:
        config: logged as parameters.
        online: False writes an archive for ``comet upload`` instead.
        api_key, api_key_file: the key; by default ``COMET_API_KEY``, or that of ``comet login``.
        tags: added to the experiment.
        rank_zero_only: False gives every rank an experiment of its own.
        **experiment_kwargs: for Comet, such as ``project_name``, ``workspace`` and, offline,
            ``offline_directory``; all others are arguments of ``ExperimentConfig``.

    Raises:
        ImportError: comet_ml is not installed.
        TypeError: Comet does not know an argument.
        ValueError: a key is needed, and there is none.
    """
    require("comet_ml", "comet", "setup_comet()")
    parameters = flat_parameters(checked_config(config, "setup_comet"))
    if isinstance(tags, str):
        raise TypeError(f"setup_comet(tags={tags!r}): expected a list.")
    named = comet_arguments("setup_comet", experiment_kwargs)
    worker = tracked_worker(rank_zero_only)
    if worker is None:
        return StandIn()
    key = read_key(api_key, api_key_file)
    if online and key is None:
        check_comet_key()
    arguments = {
        "auto_output_logging": False,
        "auto_log_co2": False,
        "display_summary_level": 0,
        **named,
    }
    experiment = open_experiment(
        online=online,
        key=run_key(worker.experiment_name or "", worker.trial_id) if worker.trial_id else None,
        exists=worker.restarted,
        api_key=key,
        **arguments,
    )
    if worker.name:
        experiment.set_name(worker.name)
    if tags:
        experiment.add_tags([*tags])
    experiment.log_parameters(parameters)

    def finish(outcome: Outcome) -> None:
        if not experiment.ended:
            within_time(lambda: end_experiment(experiment, outcome), "Comet")

    worker.at_end(finish)
    return experiment
