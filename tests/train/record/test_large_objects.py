"""Large captured variables: told, kept once for all runs, and restored as they were."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep import train
from lockstep.run_layout import OBJECT_DIRECTORY, TRAINER_FILE
from lockstep.storage import open_storage
from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig
from lockstep.train.function.serialize import dump, large_captures
from lockstep.train.record.large_objects import LargeObjects, load_with_large_objects
from tests.integration.runs import failure, fit

TABLE = np.arange(3 << 20)  # 24 MB
TEXT = b"x" * (5 << 20)


def uses_a_table(config: dict[str, Any]) -> None:
    train.report({"last": int(TABLE[-1])}, checkpoint=Checkpoint.from_dict({"a": 1}))
    if not os.path.exists(config["gate"]):
        raise RuntimeError("once")


def objects_of(path: str) -> list[Path]:
    return sorted((Path(path) / OBJECT_DIRECTORY).iterdir())


def test_a_large_global_is_named_in_a_warning_and_kept_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {"gate": str(tmp_path / "gate")}
    failed = failure(uses_a_table, config=config, workers=1).result
    assert failed is not None
    told = capfd.readouterr().err
    assert "a large object: global variable 'TABLE', used by uses_a_table (25 MB)." in told
    assert "Load it inside the function" in told
    (tmp_path / "gate").touch()
    second = fit(uses_a_table, config=config, workers=1)

    (first_file,), (second_file,) = objects_of(failed.path), objects_of(second.path)
    assert os.path.samefile(first_file, second_file)
    assert first_file.stat().st_size == TABLE.nbytes
    assert (Path(second.path) / TRAINER_FILE).stat().st_size < 1 << 20

    first_file.unlink()  # runs do not depend on each other
    assert second_file.exists()
    os.link(second_file, first_file)
    restored = DataParallelTrainer.restore(
        failed.path, run_config=RunConfig(verbose=0, storage_path=os.fspath(tmp_path))
    )
    assert restored.fit().metrics["last"] == TABLE[-1]


def test_a_small_global_stays_in_the_pickle_without_a_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    small = np.arange(1000)

    def train_func() -> None:
        train.report({"last": int(small[-1])})

    result = fit(train_func, workers=1)
    assert not (Path(result.path) / OBJECT_DIRECTORY).exists()
    assert "large" not in capfd.readouterr().err


def round_trip(value: Any, directory: Path) -> Any:
    large = LargeObjects()
    pickled = dump(value, "value", outside=large.persistent_id)
    assert len(pickled) < 1 << 20
    storage = open_storage(directory / "experiment" / "run")
    storage.make_directory()
    large.save(storage)
    return load_with_large_objects(pickled, storage)


def test_kinds_of_objects_come_back_as_they_were(tmp_path: Path) -> None:
    import torch

    read_only = TABLE.copy()
    read_only.flags.writeable = False
    tensor = torch.arange(2 << 20)
    value: dict[str, Any] = {
        "array": TABLE,
        "read_only": read_only,
        "bytes": TEXT,
        "bytearray": bytearray(TEXT),
        "fortran": np.asfortranarray(TABLE.reshape(1 << 10, -1)),
        "tensor": tensor,
    }
    loaded = round_trip(value, tmp_path)
    for name in ("array", "read_only", "fortran"):
        assert np.array_equal(loaded[name], value[name])
    assert loaded["array"].flags.writeable
    assert not loaded["read_only"].flags.writeable
    assert loaded["fortran"].flags.f_contiguous
    assert loaded["bytes"] == loaded["bytearray"] == TEXT
    assert isinstance(loaded["bytearray"], bytearray)
    assert torch.equal(loaded["tensor"], tensor)


def test_damaged_and_missing_objects_are_named(tmp_path: Path) -> None:
    config = {"gate": str(tmp_path / "gate")}
    failed = failure(uses_a_table, config=config, workers=1).result
    assert failed is not None
    (file,) = objects_of(failed.path)
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.chmod(0o600)
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged.*give train_loop_per_worker=…"):
        DataParallelTrainer.restore(failed.path)
    file.unlink()
    with pytest.raises(ValueError, match="give train_loop_per_worker=…"):
        DataParallelTrainer.restore(failed.path)


def nested() -> Callable[[], int]:
    inner_table = np.zeros(3 << 20)

    def helper() -> int:
        return len(inner_table)

    def train_func() -> int:
        return helper()

    return train_func


def test_a_variable_of_a_function_that_is_used_is_named() -> None:
    (told,) = large_captures(nested(), {})
    assert "object: variable 'inner_table', used by nested.<locals>.helper (25 MB)." in told
    (told,) = large_captures(len, {"small": 1, "deep": {"table": np.zeros(3 << 20)}})
    assert "object: train_loop_config['deep']['table'] (25 MB)." in told
