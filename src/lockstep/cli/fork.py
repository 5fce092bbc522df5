"""``lockstep fork RUN@STEP``: a new run from a checkpoint of another, with other settings."""

from __future__ import annotations

import ast
import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lockstep.cli.command import Command
from lockstep.console.text import clean
from lockstep.journal.lookup import find_run

__all__ = ["COMMAND", "changed", "split_step"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN[@STEP]",
        help="the parent, as the other commands name a run, and the training_iteration of one of "
        "its checkpoints; by default the newest",
    )
    parser.add_argument(
        "--set",
        dest="changes",
        metavar="KEY=VALUE",
        type=_change,
        action="append",
        default=[],
        help="another value in the train_loop_config: JSON or a Python literal, else a string; "
        "optimizer.lr=1e-4 for a nested one",
    )
    parser.add_argument("--name", help="of the new run; by default it lies beside its parent")


def _change(text: str) -> str:
    key, equals, _ = text.partition("=")
    if not equals or not key:
        raise ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as lr=1e-4")
    return text


def _fork(options: Namespace) -> int:
    from lockstep.train import DataParallelTrainer

    text, step = split_step(options.run)
    parent = find_run(text, pieces=True)
    filesystem = None if parent.is_local else parent.filesystem
    trainer = DataParallelTrainer.fork(parent.root, filesystem, step=step, name=options.name)
    trainer.train_loop_config = changed(trainer.train_loop_config, options.changes)
    result = trainer.fit()
    print(f"{result.path} is a fork of {parent.uri} at step {result.forked_at}.")
    return 0


def split_step(text: str) -> tuple[str, int | None]:
    """``"digits@1200"`` as the run's name and the step; a name may contain an @."""
    name, at, step = text.rpartition("@")
    return (name, int(step)) if at and name and step.isascii() and step.isdigit() else (text, None)


def changed(config: Mapping[str, Any], changes: list[str]) -> Any:
    """A copy of the config with other values.

    Raises:
        ValueError: a change goes into something that is no dict.
    """
    from lockstep.train.function.arguments import config_like

    values: dict[str, Any] = dict(config)
    for change in changes:
        key, _, text = change.partition("=")
        _put(values, key, _value(text), change)
    return config_like(config, values)


def _put(values: dict[str, Any], key: str, value: Any, change: str) -> None:
    # A key may contain dots itself.
    head, dot, rest = key.partition(".")
    if key not in values and dot and head in values:
        inner = values[head]
        if not isinstance(inner, Mapping):
            raise ValueError(f"--set {change}: {head} is {inner!r}, not a dict.")
        values[head] = dict(inner)
        _put(values[head], rest, value, change)
        return
    if key not in values:
        known = ", ".join(map(str, values)) or "nothing"
        note = f"--set {change}: the parent's config has no {key} (it has {known}): it is added."
        print(clean(note), file=sys.stderr)
    values[key] = value


def _value(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(text)
    return text


COMMAND = Command(
    "fork",
    "start a new run from a checkpoint of another; executes the code that is kept with it",
    (
        "lockstep fork digits@1200 --set lr=1e-4 --name digits-slow    another learning rate",
        "lockstep fork -1                                              the newest, as it was",
    ),
    _arguments,
    _fork,
    has_json=False,
)
