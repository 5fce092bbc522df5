"""How long does report() block on a checkpoint of 256 MB?"""

from __future__ import annotations

import importlib
import os
import shutil
import time
from typing import Any

import common
from common import Against, Bench, Measurement, Reach

FILE = "checkpointing.py"
BLOCK = 1 << 20
BLOCKS = 256
TUNED_POLL = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.01"}


# Programs. Rank 0 has the file; the other rank only meets it at the barrier.


def save_rounds(config: dict[str, Any]) -> None:
    """Report a fresh 256 MB directory ``rounds`` times; the copy in turn where asked for."""
    train = importlib.import_module(config["module"])
    rank = train.get_context().get_world_rank()
    mode = getattr(train.CheckpointUploadMode, config["mode"])
    options: dict[str, Any] = {"checkpoint_upload_mode": mode}
    if config["take_over"]:
        options["delete_local_checkpoint_after_upload"] = True
    for number in range(config["rounds"]):
        if rank != 0:
            train.report({"round": number})
            continue
        directory = os.path.join(config["work"], f"local-{config['fit']}-{number}")
        _write(directory)
        # Every other fit times the copy after the report, so that neither always comes first.
        after = config["fit"] % 2 == 1
        if config["copy"] and not after:
            common.emit(config["out"], copy=_copy(directory))
        os.sync()
        start = time.perf_counter()
        checkpoint = train.Checkpoint.from_directory(directory)
        train.report({"round": number}, checkpoint=checkpoint, **options)
        common.emit(config["out"], blocked=time.perf_counter() - start)
        if config["copy"] and after:
            common.emit(config["out"], copy=_copy(directory))
        time.sleep(config["pause"])
        if config["mode"] == "SYNC":
            shutil.rmtree(directory)


def _write(directory: str) -> None:
    os.makedirs(directory)
    block = os.urandom(BLOCK)
    with open(os.path.join(directory, "model.bin"), "wb") as file:
        for _ in range(BLOCKS):
            file.write(block)


def _copy(directory: str) -> float:
    target = directory + "-copy"
    os.sync()
    start = time.perf_counter()
    shutil.copyfile(os.path.join(directory, "model.bin"), target)
    fd = os.open(target, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    seconds = time.perf_counter() - start
    os.unlink(target)
    return seconds


def play_lockstep(config: dict[str, Any]) -> None:
    """A fit for each round: the end of a run waits for its uploads, so none meets the next."""
    for number in range(config["fits"]):
        common.lockstep_fit(
            save_rounds,
            {**config, "module": "lockstep.train", "fit": number, "rounds": 1, "pause": 0},
            name=f"fit-{number}",
        )
        shutil.rmtree(config["work"] + f"/runs/fit-{number}")


def play_ray(config: dict[str, Any]) -> None:
    """One fit, for a start takes seconds; a pause keeps uploads apart."""
    from ray.train import CheckpointConfig

    common.ray_fit(
        save_rounds,
        {**config, "module": "ray.train", "fit": 0, "copy": False, "pause": 3},
        checkpoint_config=CheckpointConfig(num_to_keep=1),
    )


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """SYNC in turn with a copy, then ASYNC."""
    fits = bench.times(9, 3)
    bench.say("256 MB, SYNC in turn with copy and flush")
    records = _records(bench, "SYNC", fits=fits, copy=True)
    sync = Measurement(
        "256 MB checkpoint, SYNC: report() blocks",
        "s",
        _blocked(records),
        against=[
            Against(
                "copy and flush",
                [record["copy"] for record in records if "copy" in record],
                Reach(1 / 1.3, "at most 1.3 times as long"),
            ),
            *_ray(bench, "SYNC", take_over=False),
        ],
    )
    bench.say("256 MB, ASYNC")
    moved = Measurement(
        "256 MB checkpoint, ASYNC, directory may be taken over: report() blocks",
        "s",
        _blocked(_records(bench, "ASYNC", fits=fits, take_over=True)),
        Reach(0.010, "10 ms"),
        _ray(bench, "ASYNC", take_over=True),
    )
    copied = Measurement(
        "256 MB checkpoint, ASYNC, directory stays the caller's: report() blocks",
        "s",
        _blocked(_records(bench, "ASYNC", fits=fits)),
    )
    return [sync, moved, copied]


def _ray(bench: Bench, mode: str, *, take_over: bool) -> list[Against]:
    rounds = bench.times(5, 2)

    def collect(**options: Any) -> list[float]:
        shared = {"mode": mode, "take_over": take_over, "rounds": rounds}
        return _blocked(bench.run(FILE, "ray", launcher="ray", **shared, **options)[2])

    return [
        bench.peer("Ray Train", collect),
        bench.peer("Ray Train, 10 ms poll", lambda: collect(env=TUNED_POLL)),
    ]


def _records(
    bench: Bench, mode: str, *, fits: int, copy: bool = False, take_over: bool = False
) -> list[dict[str, Any]]:
    return bench.run(FILE, "lockstep", mode=mode, copy=copy, take_over=take_over, fits=fits)[2]


def _blocked(records: list[dict[str, Any]]) -> list[float]:
    return [record["blocked"] for record in records if "blocked" in record]


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep, "ray": play_ray})
