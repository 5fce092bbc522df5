"""How often can two workers report, with and without a checkpoint, and how often can they log?"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Any

import common
from common import Against, Bench, Measurement, Reach

FILE = "reporting.py"
TUNED_POLL = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.01"}


# Programs. The training functions are the same for lockstep and Ray: so is the API.


def report_rounds(config: dict[str, Any]) -> None:
    """Rounds of reports; the first one warms up and does not count."""
    train = importlib.import_module(config["module"])
    rank = train.get_context().get_world_rank()
    count = config["count"]
    for number in range(config["rounds"] + 1):
        start = time.perf_counter()
        for i in range(count):
            metrics = {"loss": 1.0 / (i + 1), "accuracy": 0.5, "epoch": i}
            if config["checkpoint"] and rank == 0:
                with tempfile.TemporaryDirectory() as directory:
                    with open(os.path.join(directory, "model.bin"), "wb") as file:
                        file.write(b"x" * 1024)
                    checkpoint = train.Checkpoint.from_directory(directory)
                    train.report(metrics, checkpoint=checkpoint)
            else:
                train.report(metrics)
        seconds = time.perf_counter() - start
        if rank == 0 and number:
            common.emit(config["out"], rate=count / seconds)


def log_rounds(config: dict[str, Any]) -> None:
    """Rounds of log(), each closed by a report, which the rows before it have to pass."""
    from lockstep import train

    count = config["count"]
    for number in range(config["rounds"] + 1):
        start = time.perf_counter()
        for i in range(count):
            train.log({"loss": 1.0, "lr": 0.1}, step=i)
        called = time.perf_counter() - start
        train.report({"round": number})
        kept = time.perf_counter() - start
        if number:
            common.emit(config["out"], called=count / called, kept=count / kept)


def play_lockstep(config: dict[str, Any]) -> None:
    from lockstep.train import CheckpointConfig

    function: Callable[..., None] = log_rounds if config.get("log") else report_rounds
    common.lockstep_fit(
        function,
        {**config, "module": "lockstep.train"},
        checkpoint_config=CheckpointConfig(num_to_keep=2),
    )


def play_ray(config: dict[str, Any]) -> None:
    from ray.train import CheckpointConfig

    common.ray_fit(
        report_rounds,
        {**config, "module": "ray.train"},
        checkpoint_config=CheckpointConfig(num_to_keep=2),
    )


def play_floor(config: dict[str, Any]) -> None:
    """A barrier of pickled dicts between this process and two others, and nothing else."""
    sockets = []
    for _ in range(common.WORKERS):
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            _answering(theirs, config)
            os._exit(0)
        theirs.close()
        sockets.append(ours)
    for _ in range((config["rounds"] + 1) * config["count"]):
        for sock in sockets:
            _receive(sock)
        for sock in sockets:
            _send(sock, {"stop": False})
    for _ in sockets:
        os.wait()


def _answering(sock: socket.socket, config: dict[str, Any]) -> None:
    for number in range(config["rounds"] + 1):
        start = time.perf_counter()
        for i in range(config["count"]):
            _send(sock, {"loss": 1.0 / (i + 1), "accuracy": 0.5, "epoch": i})
            _receive(sock)
        if number:
            rate = config["count"] / (time.perf_counter() - start)
            common.emit(config["out"], rate=rate)


def _send(sock: socket.socket, value: Any) -> None:
    data = pickle.dumps(value, 5)
    sock.sendall(struct.pack("<I", len(data)) + data)


def _receive(sock: socket.socket) -> Any:
    (size,) = struct.unpack("<I", sock.recv(4, socket.MSG_WAITALL))
    return pickle.loads(sock.recv(size, socket.MSG_WAITALL))


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """Report rates in turn with their floor, then log rates."""
    rounds = bench.times(5, 2)
    bench.say("reports without a checkpoint, in turn with the floor")
    ours: list[float] = []
    floor: list[float] = []
    for _ in range(bench.times(3, 1)):
        floor += _rates(bench, "floor", rounds=rounds, count=5000)
        ours += _rates(bench, "lockstep", rounds=rounds, count=3000, checkpoint=False)
    plain = Measurement(
        "report() of three numbers",
        "/s",
        ours,
        Reach(5000, "5,000 a second"),
        [
            *_ray(bench, checkpoint=False),
            Against("floor: bare round trip", floor),
        ],
    )
    bench.say("reports with a checkpoint of 1 kB")
    saved = Measurement(
        "report() with a checkpoint of 1 kB",
        "/s",
        _rates(bench, "lockstep", rounds=rounds, count=100, checkpoint=True),
        against=_ray(bench, checkpoint=True),
    )
    bench.say("log()")
    records = bench.run(FILE, "lockstep", rounds=rounds, count=50_000, log=True)[2]
    logged = Measurement(
        "log(), each rank",
        "/s",
        [record["called"] for record in records],
        Reach(50_000, "50,000 a second"),
    )
    kept = Measurement(
        "log(), each rank, until a report() behind it returned",
        "/s",
        [record["kept"] for record in records],
    )
    return [plain, saved, logged, kept]


def _ray(bench: Bench, *, checkpoint: bool) -> list[Against]:
    rounds = bench.times(2, 1)

    def default() -> list[float]:
        return _rates(bench, "ray", rounds=rounds, count=3, checkpoint=checkpoint)

    def tuned() -> list[float]:
        return _rates(bench, "ray", rounds=rounds, count=50, checkpoint=checkpoint, env=TUNED_POLL)

    return [bench.peer("Ray Train", default), bench.peer("Ray Train, 10 ms poll", tuned)]


def _rates(bench: Bench, role: str, **config: Any) -> list[float]:
    launcher = "ray" if role == "ray" else "python"
    records = bench.run(FILE, role, launcher=launcher, **config)[2]
    return [record["rate"] for record in records]


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep, "ray": play_ray, "floor": play_floor})
