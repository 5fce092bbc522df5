"""Tools for tests: the conformance suites that every engine passes."""

__all__: list[str] = []
