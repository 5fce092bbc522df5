"""Waiting for a free GPU, testing a class's checkpoints, and the helpers for dicts."""

from __future__ import annotations

import inspect
import math
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any, SupportsFloat

from lockstep import settings
from lockstep.run_layout import scratch_prefix
from lockstep.train.function.serialize import dump
from lockstep.tune.trainable import Trainable
from lockstep.tune.utils.dicts import (
    deep_update,
    flatten_dict,
    merge_dicts,
    unflatten_dict,
    unflatten_list_dict,
    unflattened_lookup,
)

__all__ = [
    "date_str",
    "deep_update",
    "diagnose_serialization",
    "flatten_dict",
    "is_nan",
    "is_nan_or_inf",
    "merge_dicts",
    "unflatten_dict",
    "unflatten_list_dict",
    "unflattened_lookup",
    "validate_save_restore",
    "wait_for_gpu",
]


def date_str() -> str:
    """The time now, fit for a file name: ``2026-11-16_05-10-00``."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")


def is_nan(value: Any) -> bool:
    """Whether a number is NaN."""
    return isinstance(value, SupportsFloat) and math.isnan(value)


def is_nan_or_inf(value: Any) -> bool:
    """Whether a number is NaN or infinite."""
    return isinstance(value, SupportsFloat) and not math.isfinite(value)


def diagnose_serialization(trainable: Callable[..., Any]) -> bool | set[str]:
    """Print why a training function cannot be sent to workers.

    Returns:
        True if it can; else the names of the variables that it uses and that cannot be pickled.
    """
    name = getattr(trainable, "__qualname__", repr(trainable))
    try:
        dump(trainable, name)
    except TypeError as error:
        print(error)
    else:
        print(f"{name} can be pickled.")
        return True
    try:
        captured = inspect.getclosurevars(trainable)
    except TypeError:  # no Python function
        return {name}
    found = set()
    for variable, value in {**captured.globals, **captured.nonlocals}.items():
        try:
            dump(value, variable)
        except TypeError as error:
            found.add(variable)
            print(f"{variable}: {error}")
    print("Create these inside the function instead of using them from outside.")
    return found or {name}


def wait_for_gpu(
    gpu_id: int | str | None = None,
    target_util: float = 0.01,
    retry: int = 20,
    delay_s: float = 5,
    gpu_memory_limit: float | None = None,
) -> bool:
    """Wait until a GPU's memory is almost unused, at the start of a trial.

    For GPUs that other programs use, too.

    Args:
        gpu_id: index or UUID; by default the first GPU that this process may see.
        target_util: the share of the memory that may be in use, from 0 to 1.
        retry: how often to check.
        delay_s: the seconds between two checks.
        gpu_memory_limit: the older name of ``target_util``.

    Returns:
        True.

    Raises:
        RuntimeError: the GPU is still in use, or does not exist.
    """
    target_util = target_util if gpu_memory_limit is None else gpu_memory_limit
    if gpu_id is None:
        gpu_id = (settings.cuda_visible_devices() or "0").split(",")[0].strip()
    in_use = 0.0
    for attempt in range(int(retry)):
        if attempt:
            time.sleep(delay_s)
        in_use = _memory_in_use(gpu_id)
        if in_use <= target_util:
            return True
    raise RuntimeError(
        f"wait_for_gpu({gpu_id!r}, target_util={target_util}): {in_use:.0%} of its memory is still "
        f"in use after {int(retry)} checks, {delay_s} s apart; nvidia-smi shows who uses it."
    )


def _memory_in_use(gpu_id: int | str) -> float:
    command = ["nvidia-smi", f"--id={gpu_id}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*command, "--query-gpu=memory.used,memory.total"], capture_output=True, text=True
        )
    except FileNotFoundError:
        raise RuntimeError(
            f"wait_for_gpu({gpu_id!r}): there is no nvidia-smi here to ask; call it only "
            "where trials have a GPU."
        ) from None
    try:
        used, total = (float(number) for number in done.stdout.split(","))
    except ValueError:
        output = " ".join((done.stdout + done.stderr).split())
        raise RuntimeError(f"wait_for_gpu({gpu_id!r}): nvidia-smi answered: {output}") from None
    return used / total


def validate_save_restore(
    trainable_cls: type[Trainable],
    config: dict[str, Any] | None = None,
    num_gpus: int = 0,
    use_object_store: bool = False,
) -> bool:
    """Test in this process whether a class resumes from its own checkpoint.

    Args:
        trainable_cls: the class.
        config: its hyperparameters.
        num_gpus, use_object_store: accepted and without effect: this process has the GPUs it has,
            and checkpoints are files.

    Returns:
        True.

    Raises:
        ValueError: the restored object does not continue the saved one's count of steps.
        Exception: whatever the class's methods raise.
    """
    first, second = trainable_cls(config), trainable_cls(config)
    try:
        for _ in range(3):
            first.train()
        with tempfile.TemporaryDirectory(prefix=scratch_prefix("validate")) as directory:
            second.restore(first.save(directory))
        reached = second.train()["training_iteration"]
        if reached != 4:
            raise ValueError(
                f"validate_save_restore({trainable_cls.__name__}): saved after 3 steps, and the "
                f"step after restoring is number {reached}; let step() return no "
                "'training_iteration' of its own."
            )
    finally:
        first.stop()
        second.stop()
    return True
