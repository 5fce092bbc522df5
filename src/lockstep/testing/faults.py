"""FaultPlan: which rank fails, how and at which report, written as a sentence.

plan = FaultPlan().kill(rank=1, at_report=3).raise_in(rank=0, at_report=5, error=OSError("x"))
DataParallelTrainer(train_func, ..., fault_plan=plan).fit()
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.checks import check_field_int, is_number
from lockstep.train.function.serialize import dump

__all__ = ["FaultPlan", "InjectedError"]

_RANDOM_KINDS = ("kill", "exit", "raise")
_LAST_EXIT_CODE = 255


class InjectedError(RuntimeError):
    """The error that an injected fault raises if the test names no other."""


@dataclass(frozen=True)
class FaultPlan:
    """Faults to inject into a run's workers. Each happens just before a rank sends a report.

    A plan is frozen: every method returns a new plan with one more fault. So a plan reads like a
    sentence, and ``repr`` returns that sentence. Pass the plan to a trainer as ``fault_plan``.

    ``at_report`` counts the reports of one attempt from 1, ``attempt`` the attempts of the run from
    1; ``attempt=None`` means every attempt. A fault whose rank or report never occurs does nothing.
    Several faults at one report happen in the order they were given.

    With ``num_workers=0`` the worker is the test's own process: there ``kill``, ``exit`` and
    ``terminate`` raise a RuntimeError instead.
    """

    _faults: tuple[_Fault, ...] = ()
    # The test's process, which no fault may end; unpickled in a worker it still names the test's.
    _home: int = field(default_factory=os.getpid, compare=False)

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        ranks: int,
        reports: int,
        kinds: Sequence[str] = _RANDOM_KINDS,
        count: int = 1,
    ) -> FaultPlan:
        """Return a plan with one random fault in each of ``count`` attempts, for soak tests.

        Args:
            seed: the same seed gives the same plan.
            ranks: the number of workers.
            reports: the last report at which a fault may happen.
            kinds: some of ``"kill"``, ``"exit"`` and ``"raise"``.
            count: attempts 1 to ``count`` have one fault each.
        """
        owner = "FaultPlan.random"
        for name, value in (("ranks", ranks), ("reports", reports), ("count", count)):
            check_field_int(owner, name, value, 1)
        if isinstance(kinds, str) or not kinds or not set(kinds) <= set(_RANDOM_KINDS):
            raise ValueError(f"{owner}(kinds={kinds!r}): expected some of {_RANDOM_KINDS}.")
        generator = random.Random(seed)
        plan = cls()
        for attempt in range(1, count + 1):
            kind = generator.choice(list(kinds))
            rank, report = generator.randrange(ranks), generator.randint(1, reports)
            if kind == "kill":
                plan = plan.kill(rank=rank, at_report=report, attempt=attempt)
            elif kind == "exit":
                code = generator.randint(1, _LAST_EXIT_CODE)
                plan = plan.exit(rank=rank, at_report=report, code=code, attempt=attempt)
            else:
                error = InjectedError(f"injected with seed {seed}")
                plan = plan.raise_in(rank=rank, at_report=report, error=error, attempt=attempt)
        return plan

    def kill(self, *, rank: int, at_report: int, attempt: int | None = 1) -> FaultPlan:
        """The process gets SIGKILL, as when the system runs out of memory."""
        return self._and("kill", rank, at_report, attempt)

    def exit(
        self, *, rank: int, at_report: int, code: int = 1, attempt: int | None = 1
    ) -> FaultPlan:
        """The process ends at once with ``code``, without cleanup (``os._exit``)."""
        check_field_int("FaultPlan.exit", "code", code, 0)
        if code > _LAST_EXIT_CODE:
            raise ValueError(f"FaultPlan.exit(code={code}): must be {_LAST_EXIT_CODE} or less.")
        return self._and("exit", rank, at_report, attempt, code=code)

    def raise_in(
        self,
        *,
        rank: int,
        at_report: int,
        error: BaseException | type[BaseException] = InjectedError,
        attempt: int | None = 1,
    ) -> FaultPlan:
        """``report()`` raises ``error``, an exception or the class of one."""
        is_class = isinstance(error, type) and issubclass(error, BaseException)
        if not is_class and not isinstance(error, BaseException):
            raise TypeError(
                f"FaultPlan.raise_in(error={error!r}): expected an exception, such as "
                "ValueError('x'), or the class of one."
            )
        return self._and("raise_in", rank, at_report, attempt, error=error)

    def hang(self, *, rank: int, at_report: int, attempt: int | None = 1) -> FaultPlan:
        """``report()`` never returns, as in a deadlock; a KeyboardInterrupt ends it."""
        return self._and("hang", rank, at_report, attempt)

    def slow(
        self, *, rank: int, at_report: int, seconds: float, attempt: int | None = 1
    ) -> FaultPlan:
        """``report()`` takes ``seconds`` longer, then continues."""
        if not is_number(seconds):
            raise TypeError(f"FaultPlan.slow(seconds={seconds!r}): expected a number.")
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"FaultPlan.slow(seconds={seconds!r}): must be finite, 0 or more.")
        return self._and("slow", rank, at_report, attempt, seconds=seconds)

    def terminate(self, *, rank: int, at_report: int, attempt: int | None = 1) -> FaultPlan:
        """The process gets SIGTERM, as at a preemption, and continues if it survives."""
        return self._and("terminate", rank, at_report, attempt)

    def __call__(self, rank: int, report_number: int, attempt: int) -> None:
        """Inject the faults that are due. A worker calls this just before it sends each report."""
        for fault in self._faults:
            if fault.is_due(rank, report_number, attempt):
                if fault.ends_process and os.getpid() == self._home:
                    raise RuntimeError(
                        f"FaultPlan(){fault!r} would end the process that made the plan: "
                        "with num_workers=0 use raise_in, or give the trainer a worker."
                    )
                fault.happen()

    def __repr__(self) -> str:
        return "FaultPlan()" + "".join(map(repr, self._faults))

    def _and(
        self, kind: str, rank: int, at_report: int, attempt: int | None, **details: Any
    ) -> FaultPlan:
        owner = f"FaultPlan.{kind}"
        check_field_int(owner, "rank", rank, 0)
        check_field_int(owner, "at_report", at_report, 1)
        if attempt is not None:
            check_field_int(owner, "attempt", attempt, 1, " None means every attempt.")
        fault = _Fault(kind, rank, at_report, attempt, details)
        return replace(self, _faults=(*self._faults, fault))


@dataclass(frozen=True)
class _Fault:
    kind: str
    rank: int
    at_report: int
    attempt: int | None
    details: dict[str, Any]

    @property
    def ends_process(self) -> bool:
        return self.kind in ("kill", "exit", "terminate")

    def is_due(self, rank: int, report_number: int, attempt: int) -> bool:
        here = (rank, report_number) == (self.rank, self.at_report)
        return here and self.attempt in (None, attempt)

    def happen(self) -> None:
        match self.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
            case "exit":
                os._exit(self.details["code"])
            case "raise_in":
                raise self.details["error"]
            case "slow":
                time.sleep(self.details["seconds"])
            case "hang":
                while True:
                    time.sleep(3600)

    def __hash__(self) -> int:
        return hash((self.kind, self.rank, self.at_report, self.attempt))

    def __repr__(self) -> str:
        arguments = {"rank": self.rank, "at_report": self.at_report, **self.details}
        if self.attempt != 1:
            arguments["attempt"] = self.attempt
        shown = (
            f"{name}={value.__qualname__ if isinstance(value, type) else repr(value)}"
            for name, value in arguments.items()
        )
        return f".{self.kind}({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        details = dict(self.details)
        error = details.get("error")
        if isinstance(error, BaseException):
            # The error's class may be in a test module that a worker cannot import, and its
            # __init__ may take other arguments than ``args``: so class and state are sent apart.
            kind = dump(type(error), f"the class of {error!r}")
            state = dump((error.args, vars(error)), f"the attributes of {error!r}")
            details["error"] = _Packed(kind, state, str(error))
        elif error is not None:
            details["error"] = _Packed(dump(error, repr(error)))
        place = (self.kind, self.rank, self.at_report, self.attempt)
        return _rebuild_fault, (*place, details)


@dataclass(frozen=True)
class _Packed:
    kind: bytes
    state: bytes | None = None
    message: str = ""

    def unpack(self) -> BaseException | type[BaseException]:
        import cloudpickle

        kind: type[BaseException] = cloudpickle.loads(self.kind)
        if self.state is None:
            return kind
        args, attributes = cloudpickle.loads(self.state)
        error = kind.__new__(kind, *args)
        with suppress(Exception):  # __init__ may take other arguments
            made = kind(*args)
            error = made if str(made) == self.message else error
        vars(error).update(attributes)
        return error


def _rebuild_fault(
    kind: str, rank: int, at_report: int, attempt: int | None, details: dict[str, Any]
) -> _Fault:
    if isinstance(error := details.get("error"), _Packed):
        details["error"] = error.unpack()
    return _Fault(kind, rank, at_report, attempt, details)
