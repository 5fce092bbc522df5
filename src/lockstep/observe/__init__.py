"""What can be said of a run from its directory. The command line and the dashboard say it."""

__all__: list[str] = []
