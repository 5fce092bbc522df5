"""Objects kept with a run or an experiment for a restore: code and configs, never state.

Each object is pickled by itself. So an object that cannot be loaded is named in the error, and the
user can give another in its place.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lockstep.config import RunConfig
from lockstep.redact import redacted
from lockstep.storage import Storage
from lockstep.train.function.serialize import Outside, dump
from lockstep.train.record.large_objects import load_with_large_objects
from lockstep.train.record.left_out import reduce_without_secrets

__all__ = ["KeptObjects", "pickle_each", "pickle_run_config"]


def pickle_each(
    objects: Mapping[Any, Any],
    like: Any,
    *,
    skip_unpicklable: bool = False,
    outside: Outside | None = None,
) -> dict[Any, bytes]:
    """The objects by name, as bytes that load where the module of ``like`` is not installed.

    Without secrets (``left_out``), and without those in URIs of plain values.

    Raises:
        TypeError: an object cannot be pickled; names it. Not with ``skip_unpicklable``.
    """
    pickled = {}
    for name, value in objects.items():
        try:
            pickled[name] = dump(
                redacted(value),
                str(name),
                by_value=True,
                like=like,
                reduce=reduce_without_secrets,
                outside=outside,
            )
        except TypeError:  # often: the object holds a connection or a file
            if not skip_unpicklable:
                raise
    return pickled


def pickle_run_config(run_config: RunConfig, like: Any) -> dict[str, Any]:
    """``run_config`` and ``callbacks``, as far as they can be pickled."""
    # Left out: a restore finds the run on its storage, and a filesystem may hold secrets.
    bare = replace(run_config, callbacks=(), storage_filesystem=None, storage_path=None)
    # One by one, so that a callback with an open connection costs only itself.
    callbacks = dict(enumerate(run_config.callbacks))
    return {
        **pickle_each({"run_config": bare}, like, skip_unpicklable=True),
        "callbacks": list(pickle_each(callbacks, like, skip_unpicklable=True).values()),
    }


@dataclass(frozen=True)
class KeptObjects:
    """Loads the objects of a file.

    Args:
        pickled: what the functions above returned.
        owner: how an error begins: ``"restore('/runs/a'): the run's"``.
        replaceable: the arguments that ``restore()`` accepts instead of kept objects.
        storage: where their large parts are, if they may have such.
    """

    pickled: Mapping[str, Any]
    owner: str
    replaceable: Container[str]
    storage: Storage | None = None

    def load(self, pickled: bytes, argument: str) -> Any:
        """One object.

        Raises:
            ValueError: the object cannot be loaded; names the argument and the fix.
        """
        try:
            return load_with_large_objects(pickled, self.storage)
        except Exception as error:
            fix = "make what it needs importable"
            if argument in self.replaceable:
                fix = f"give {argument}=… to restore()"
            raise ValueError(
                f"{self.owner} {argument} cannot be loaded here "
                f"({type(error).__name__}: {error}); {fix}."
            ) from error

    def load_run_config(self) -> RunConfig:
        """The run config with its callbacks."""
        run_config: RunConfig = self.load(self.pickled["run_config"], "run_config")
        callbacks = [self.load(each, "run_config") for each in self.pickled["callbacks"]]
        return replace(run_config, callbacks=callbacks)
