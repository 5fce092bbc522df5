"""``setup_mlflow``: an MLflow run on rank 0, the same one after every restart."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.trackers.credentials import check_databricks, require, variable
from lockstep.trackers.mlflow_client import (
    MLFLOW_STATUS,
    earlier_run,
    experiment_id_of,
    file_store_allowed,
    log_in,
    mlflow_parameters,
    run_tags,
)
from lockstep.trackers.values import Outcome
from lockstep.train.tracking.worker import StandIn, checked_config, tracked_worker, within_time

__all__ = ["mlflow_mixin", "setup_mlflow"]


def setup_mlflow(
    config: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: Mapping[str, Any] | None = None,
    rank_zero_only: bool = True,
) -> Any:
    """Connect to MLflow and create this run there, or resume it after a restart.

    Returns the ``mlflow`` module, with the run active, and on the other ranks a stand-in that does
    nothing. When the training function ends, the run is ended with the outcome as its status,
    unless you have called ``mlflow.end_run()`` yourself.

    Args:
        config: logged as parameters.
        tracking_uri, registry_uri: the server or store; MLflow's own defaults if None.
        experiment_id, experiment_name: if both are given, the id is used; if neither is, MLflow's
            default experiment.
        tracking_token: sets ``MLFLOW_TRACKING_TOKEN`` in this worker.
        artifact_location: where artifacts go, if the experiment is created here.
        run_name: by default the trial's name.
        create_experiment_if_not_exists: create the experiment if it does not exist.
        tags: set on the run.
        rank_zero_only: False gives every rank a run of its own.

    Raises:
        ImportError: mlflow is not installed.
        ValueError: the experiment does not exist, or there is no login for ``databricks``.
    """
    require("mlflow", "mlflow", "setup_mlflow()")
    parameters = mlflow_parameters(checked_config(config, "setup_mlflow"))
    worker = tracked_worker(rank_zero_only)
    if worker is None:
        return StandIn()
    check_databricks(tracking_uri)
    import mlflow

    log_in(tracking_token)
    if tracking_uri is not None:
        mlflow.set_tracking_uri(tracking_uri)
    if registry_uri is not None:
        mlflow.set_registry_uri(registry_uri)
    with file_store_allowed(tracking_uri or variable("MLFLOW_TRACKING_URI")):
        client = mlflow.MlflowClient()
        experiment = experiment_id_of(
            client,
            experiment_id,
            experiment_name,
            create=create_experiment_if_not_exists,
            artifact_location=artifact_location,
        )
    identity = (worker.experiment_name or "", worker.trial_id or "")
    earlier = earlier_run(client, experiment, *identity) if worker.restarted else None
    if earlier is None:
        own = run_tags(*identity) if worker.trial_id else {}
        run = mlflow.start_run(
            experiment_id=experiment, run_name=run_name or worker.name, tags={**own, **(tags or {})}
        )
    else:
        run = mlflow.start_run(run_id=earlier.info.run_id)
    # MLflow's parameters cannot change: those that an earlier attempt logged stay.
    known = {} if earlier is None else earlier.data.params
    new = {key: value for key, value in parameters.items() if key not in known}
    if new:
        mlflow.log_params(new)
    run_id = run.info.run_id

    def finish(outcome: Outcome) -> None:
        active = mlflow.active_run()
        if active is None or active.info.run_id != run_id:
            return  # the training function has ended the run
        status = MLFLOW_STATUS[outcome]
        # set_terminated may hang, so it runs in another thread. The active run belongs to this
        # thread, so end_run must run here; it does not hang once the server has answered.
        if within_time(lambda: client.set_terminated(run_id, status), "MLflow"):
            mlflow.end_run(status)

    worker.at_end(finish)
    return mlflow


def mlflow_mixin(func: Callable[..., Any]) -> Callable[..., Any]:
    """A training function that calls ``setup_mlflow(**config["mlflow"])`` first. For old scripts.

    The config that is logged is without the key ``"mlflow"``. New code calls ``setup_mlflow``.

    Raises:
        TypeError: it is a class; call ``setup_mlflow`` in its ``setup``.
    """
    if isinstance(func, type):
        raise TypeError(
            f"mlflow_mixin({func.__name__}): expected a function; in a Trainable class, call "
            "setup_mlflow() in its setup()."
        )

    @functools.wraps(func)
    def with_mlflow(config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        searched = {key: value for key, value in config.items() if key != "mlflow"}
        options = dict(config.get("mlflow", {}))
        options["tracking_token"] = options.pop("token", options.get("tracking_token"))
        setup_mlflow(searched, **options)
        return func(config, *args, **kwargs)

    return with_mlflow
