"""Tools for tests: injected faults, a proof that training resumes, the conformance suites."""

from lockstep.testing.engines import EngineConformance
from lockstep.testing.faults import FaultPlan, InjectedError
from lockstep.testing.reproduce import Reproduction, replay, verify_run
from lockstep.testing.resume import Difference, ResumeReport, verify_resume
from lockstep.testing.schedulers import SchedulerConformance
from lockstep.testing.searchers import SearcherConformance
from lockstep.testing.trainers import TrainerConformance

__all__ = [
    "Difference",
    "EngineConformance",
    "FaultPlan",
    "InjectedError",
    "Reproduction",
    "ResumeReport",
    "SchedulerConformance",
    "SearcherConformance",
    "TrainerConformance",
    "replay",
    "verify_resume",
    "verify_run",
]
