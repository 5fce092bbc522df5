"""Ray Data's module of its settings."""

from lockstep.data.compat import DataContext

__all__ = ["DataContext"]
