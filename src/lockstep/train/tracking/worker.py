"""What the helpers share: who this worker is to a tracker, a silent stand-in, a bounded end."""

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
    """Takes every call and does nothing: what the ranks get that do not log.

    ``with`` works, attributes and items can be read, called and set, and it is false.
    """

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # copy, pickle and the like ask for protocols
        return self

    def __setattr__(self, name: str, value: object) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> StandIn:
        """Nothing happens."""
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
    """This worker as a tracker sees it. Outside a training function nothing has a name."""

    trial_id: str | None = None
    name: str | None = None
    experiment_name: str | None = None
    restarted: bool = False
    """An earlier attempt may have begun the tracker's run."""

    def at_end(self, finish: Callable[[Outcome], None]) -> None:
        """Call ``finish`` when the training function has ended."""
        session = sessions.current()
        if session is not None:
            session.at_end(finish)


def tracked_worker(rank_zero_only: bool) -> Tracked | None:
    """Who this worker is, None if it is not to log."""
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
    """The config as a dict.

    Raises:
        TypeError: it is none.
    """
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"{caller}(config={config!r}): expected a dict.")
    return dict(config or {})


def within_time(action: Callable[[], None], tracker: str) -> bool:
    """Do what may hang on a network, but wait for it no longer than for a callback.

    Says what went wrong, once, in this worker's output; True if nothing did.
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
