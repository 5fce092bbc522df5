"""``Experiment``: the arguments of one ``tune.run``, for scripts that collect several."""

from __future__ import annotations

from typing import Any

__all__ = ["Experiment"]


class Experiment:
    """The arguments of ``tune.run``, by name. Run with ``tune.run`` or ``tune.run_experiments``.

    Args:
        name: the experiment's directory.
        run: what ``Tuner`` takes: a function, a class, a trainer, or a registered name.
        options: other arguments of ``tune.run``: ``stop``, ``config``, ``num_samples`` and so on.
    """

    def __init__(self, name: str, run: Any, **options: Any) -> None:
        self.name = name
        self.run = run
        self.options = options

    @classmethod
    def from_json(cls, name: str, spec: dict[str, Any]) -> Experiment:
        """An experiment from a dict with ``run`` and the other arguments.

        Raises:
            ValueError: the dict has no ``run``.
        """
        if "run" not in spec:
            raise ValueError(f"Experiment.from_json({name!r}): the dict needs 'run', a trainable.")
        options = {key: value for key, value in spec.items() if key != "run"}
        return cls(name, spec["run"], **options)

    def __repr__(self) -> str:
        return f"Experiment({self.name!r}, {self.run!r})"
