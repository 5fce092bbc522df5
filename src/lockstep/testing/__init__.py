"""Tools for tests: the conformance suites that every engine passes."""

from lockstep.testing.engines import EngineConformance

__all__ = ["EngineConformance"]
