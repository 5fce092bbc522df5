"""What the ``setup_…`` helpers share: the worker's identity, a silent stand-in, a bounded end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep import settings
from lockstep.trackers.values import Outcome
from lockstep.train.worker import session as sessions

__all__ = ["StandIn", "Tracked", "checked_config", "tracked_worker", "within_time"]


class StandIn:
    """Accepts every call and does nothing. Ranks that do not log get one.

    ``with`` works; attributes and items can be read, called and set; it is false.
    """

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # copy and pickle look for their protocols
        return self

    def __setattr__(self, name: str, value: object) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> StandIn:
        """Do nothing."""
        return self

    def __getitem__(self, key: object) -> StandIn:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<silent: another rank logs>"


@dataclass(frozen=True)
class Tracked:
    """This worker's identity for a tracker. Outside a training function every name is None."""

    trial_id: str | None = None
    name: str | None = None
    experiment_name: str | None = None
    restarted: bool = False
    """An earlier attempt may have created the tracker's run."""

    def at_end(self, finish: Callable[[Outcome], None]) -> None:
        """Call ``finish`` when the training function has ended."""
        session = sessions.current()
        if session is not None:
            session.at_end(finish)


def tracked_worker(rank_zero_only: bool) -> Tracked | None:
    """Return this worker's identity; None if this rank does not log."""
    session = sessions.current()
    if session is None:
        return Tracked()
    context = session.context
    if rank_zero_only and context.world_rank != 0:
        return None
    suffix = "" if rank_zero_only else f"_rank_{context.world_rank}"
    return Tracked(
        context.trial_id + suffix,
        context.trial_name + suffix,
        context.experiment_name,
        context.attempt > 1,
    )


def checked_config(config: Mapping[str, Any] | None, caller: str) -> dict[str, Any]:
    """Return the config as a dict.

    Raises:
        TypeError: the config is not a dict.
    """
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"{caller}(config={config!r}): expected a dict.")
    return dict(config or {})


def within_time(action: Callable[[], None], tracker: str) -> bool:
    """Run an action that may hang on the network, with the time limit of callbacks.

    Returns True if it succeeded; otherwise the worker prints what went wrong.
    """
    problems: list[str] = []

    def attempt() -> None:
        try:
            action()
        except Exception as error:
            problems.append(f"raised {type(error).__name__}: {error}")

    seconds = settings.callback_flush_seconds()
    thread = threading.Thread(target=attempt, name=f"lockstep-end-{tracker}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        problems.append(
            f"has not finished within {seconds:g} s; set LOCKSTEP_CALLBACK_FLUSH_S to wait longer"
        )
    for problem in problems[:1]:
        print(f"Ending the {tracker} run {problem}.", file=sys.stderr)
    return not problems
