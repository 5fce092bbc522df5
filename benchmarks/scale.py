"""How does one driver cope with 100, 1,000 and 10,000 workers? By simulation.

The controller, the state machine, the journal and the wire are the real ones. The cluster is not:
one process has all workers' connections, and says what workers would say. What is measured is the
CPU time of the driver's own thread: the workers of a real cluster have CPUs of their own.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import common
from common import Bench, Measurement, Reach

FILE = "scale.py"
SIZES = (2, 100, 1_000, 10_000)
ROWS = 8
SAVES = 3
PER_NODE = 8
LIMIT_S = 1200.0
_HEAD = struct.Struct("!Q")
_SIZE = (1 << 48) - 1


# The program of the workers: each group is one line on standard input.


def play_nodes(config: dict[str, Any]) -> None:
    sys.path.insert(0, str(common.HERE.parent / "src"))
    for attempt, line in enumerate(sys.stdin, 1):
        order = json.loads(line)
        _Group(order["address"], bytes.fromhex(order["secret"]), order["size"], attempt).run()


class _Group:
    """All workers of a group, and the agents of their nodes."""

    def __init__(self, address: list[Any], secret: bytes, size: int, attempt: int) -> None:
        from lockstep.engine.agent import control_role
        from lockstep.engine.links import link_to

        where = (address[0], address[1])
        self._size = size
        self._attempt = attempt
        self._nodes = [link_to(where, secret, control_role(i)) for i in range(nodes_of(size))]
        self._workers = [link_to(where, secret, rank) for rank in range(size)]
        self._waiting = [bytearray() for _ in range(size)]
        self._said = [0] * size

    def run(self) -> None:
        from lockstep.engine.base import WorkerInfo
        from lockstep.engine.forkserver import Started
        from lockstep.engine.wire import make_frame
        from lockstep.train.protocol import Hello

        poller = select.epoll()
        for rank, sock in enumerate(self._workers):
            info = WorkerInfo(rank, rank + 1, "simulated", "127.0.0.1", 1, str(rank // PER_NODE))
            sock.sendall(make_frame(Started(rank + 1)) + make_frame(Hello(info, None)))
            poller.register(sock.fileno(), select.EPOLLIN)
        self._rank_of = {sock.fileno(): rank for rank, sock in enumerate(self._workers)}
        frames = _frames() if self._attempt == 1 else _last_frames()
        left = self._size
        while left:
            for fd, _ in poller.poll():
                rank = self._rank_of[fd]
                for _ in range(self._read(rank)):
                    said = self._said[rank]
                    self._said[rank] += 1
                    if said == 0:
                        continue  # the payload
                    if said > len(frames):
                        poller.unregister(fd)
                        left -= 1
                        break
                    frame = frames[said - 1]
                    self._workers[rank].sendall(frame(rank) if callable(frame) else frame)
        if self._attempt == 1:
            self._fail()
        else:
            for rank in range(self._size):
                self._end(rank, 0)
        for sock in self._nodes:
            while sock.recv(1 << 16):  # an order to kill; then the driver closes the group
                pass
            sock.close()

    def _fail(self) -> None:
        """A rank is killed, and all others lose their connections to it, as ranks do."""
        from lockstep.engine.wire import make_frame
        from lockstep.error_record import pack_error
        from lockstep.train.protocol import Failed

        self._end(0, -9)
        lost = make_frame(Failed(pack_error(ConnectionResetError("Connection reset by peer"))))
        for rank in range(1, self._size):
            self._workers[rank].sendall(lost)
        for rank in range(1, self._size):
            self._end(rank, 1)

    def _read(self, rank: int) -> int:
        """How many messages have come."""
        waiting = self._waiting[rank]
        waiting += self._workers[rank].recv(1 << 20)
        count = 0
        while len(waiting) >= _HEAD.size:
            end = _HEAD.size + (_HEAD.unpack_from(waiting)[0] & _SIZE)
            if len(waiting) < end:
                break
            del waiting[:end]
            count += 1
        return count

    def _end(self, rank: int, code: int) -> None:
        from lockstep.engine.forkserver import Ended
        from lockstep.engine.wire import make_frame

        self._workers[rank].close()
        self._nodes[rank // PER_NODE].sendall(make_frame(Ended(rank, code, "")))


def nodes_of(size: int) -> int:
    return math.ceil(size / PER_NODE)


def _last_frames() -> list[bytes | Callable[[int], bytes]]:
    """What a worker of the second attempt says: one report, and the end."""
    from lockstep.engine.wire import make_frame
    from lockstep.train import protocol as m

    metrics = {"loss": 0.5, "accuracy": 0.25, "step": 1}
    return [make_frame(m.Report(1, metrics, None, None, 0.0, 0.1)), make_frame(m.Finished())]


def _frames() -> list[bytes | Callable[[int], bytes]]:
    """What a worker of the first attempt says to launch, answers and orders to save."""
    from lockstep.config import CheckpointUploadMode
    from lockstep.engine.wire import make_frame
    from lockstep.train import protocol as m

    metrics = {"loss": 0.5, "accuracy": 0.25, "step": 1}
    frames: list[bytes | Callable[[int], bytes]] = [
        make_frame(m.Report(number + 1, metrics, None, None, 0.0, 0.1)) for number in range(ROWS)
    ]

    def with_checkpoint(number: int) -> Callable[[int], bytes]:
        def frame(rank: int) -> bytes:
            part = m.CheckpointReport(
                {f"part_{rank}": 100}, CheckpointUploadMode.SYNC, None, None, None
            )
            return make_frame(m.Report(number, metrics, part, None, 0.0, 0.1))

        return frame

    for save in range(SAVES):
        saved = make_frame(m.Saved(f"checkpoint_{save:06d}", {}))
        frames += [with_checkpoint(ROWS + save + 1), saved]
    return frames


# The program of the driver.


def play_driver(config: dict[str, Any]) -> None:
    sys.path.insert(0, str(common.HERE.parent / "src"))
    import subprocess

    settings = json.dumps({**config, "out": os.devnull})
    command = [sys.executable, __file__, "nodes", settings]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as nodes:
        _drive(config, nodes)


def _drive(config: dict[str, Any], nodes: Any) -> None:

    from lockstep.console import make_display
    from lockstep.engine.base import Engine, Node
    from lockstep.engine.cluster import Placement
    from lockstep.engine.loop import EventLoop
    from lockstep.engine.remote_group import RemoteGroup
    from lockstep.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
    from lockstep.train.driver.callbacks import CallbackDispatcher
    from lockstep.train.driver.controller import Controller

    size = config["size"]
    starts: list[float] = []

    class Simulated(Engine):
        name, single_machine, in_this_process = "simulated", True, False
        host = "127.0.0.1"

        def check(self, spec: Any) -> list[str]:
            return []

        def capacity(self, spec: Any) -> int:
            return size

        def resources(self) -> tuple[float, tuple[str, ...]]:
            return float(size), ()

        def watch_capacity(self, loop: Any, changed: Any) -> Callable[[], None]:
            return lambda: None

        def start(self, spec: Any, loop: Any, emit: Any, output: Any) -> Any:
            starts.append(time.thread_time())
            return RemoteGroup(spec, loop, emit, output, self)

        def close(self) -> None:
            pass

        def place(self, spec: Any, waiting: Any, is_cancelled: Any) -> Placement:
            places = [Node(str(rank // PER_NODE), "127.0.0.1") for rank in range(size)]
            return Placement(None, places, [[]] * size)

        def release(self, placement: Any) -> None:
            pass

        def open_shares(self, shares: Sequence[Any], address: Any, secret: bytes) -> list[str]:
            order = {"address": address, "secret": secret.hex(), "size": size}
            nodes.stdin.write(json.dumps(order) + "\n")
            nodes.stdin.flush()
            return []

        def follow(self, heard: Any) -> Callable[[], None]:
            return lambda: None

    trainer = DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=size),
        run_config=RunConfig(
            storage_path=config["work"] + "/runs",
            verbose=0,
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    payload = replace(trainer.payload(), engine=Simulated())
    run = trainer._open_run()
    plan = trainer.plan_run(payload, run)
    loop = EventLoop()
    callbacks = CallbackDispatcher([], print, 5.0)
    times: list[float] = []
    in_system: list[float] = []

    def decide(row: dict[str, Any]) -> bool:
        times.append(time.thread_time())
        in_system.append(resource.getrusage(resource.RUSAGE_THREAD).ru_stime)
        return False

    begun = time.thread_time()
    display = make_display(0, interactive_function=False)
    controller = Controller(
        plan, run, loop=loop, callbacks=callbacks, display=display, decide=decide
    )
    controller.start()
    loop.run_until(lambda: controller.ended)
    ended = time.thread_time()
    nodes.stdin.close()
    assert len(times) == ROWS + SAVES + 1, (
        len(times),
        controller.state.phase,
        controller.state.failures,
    )
    steps = [b - a for a, b in pairwise(times)]
    rows = steps[: ROWS - 1]
    saves = steps[ROWS - 1 : -1]
    start = times[0] - begun - common.median(rows)
    with open("/proc/self/status", encoding="ascii") as status:
        (peak,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    common.emit(
        config["out"],
        size=size,
        start=start,
        row=common.median(rows),
        # The kernel counts this by sampling: of all rows together.
        system=(in_system[ROWS - 1] - in_system[0]) / (times[ROWS - 1] - times[0]),
        save=common.median(saves),
        # From the last row of an attempt to the start of the next one.
        failure=starts[1] - times[-2],
        end=ended - times[-1],
        peak_mb=peak / 1024,
    )
    controller.close()
    callbacks.close()
    loop.close()
    run.close()


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """Each size in a driver of its own."""
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in SIZES}
    for _ in range(bench.times(3, 1)):
        for size in SIZES:
            bench.say(f"  {size} workers")
            with bench.program(FILE, "driver", size=size) as program:
                program.wait(LIMIT_S)
                found[size] += program.records()
    reaches = {1_000: Reach(0.05, "50 ms"), 10_000: Reach(0.5, "0.5 s")}
    measured = []
    for size in SIZES[1:]:
        for what, key, reach in (
            ("start", "start", None),
            ("a report with all ranks' metrics", "row", reaches.get(size)),
            ("a checkpoint with a file from each rank", "save", None),
            ("a failure of every rank, without the start that follows", "failure", None),
        ):
            samples = [record[key] for record in found[size]]
            text = f"{size:,} simulated workers, CPU of the driver: {what}"
            measured.append(Measurement(text, "s", samples, reach))
        shares = [100 * record["system"] for record in found[size]]
        text = f"{size:,} simulated workers: the part of a report that is system calls"
        measured.append(Measurement(text, "%", shares))
    more = [
        large["peak_mb"] - small["peak_mb"]
        for large, small in zip(found[1_000], found[2], strict=True)
    ]
    text = "1,000 simulated workers: the driver's memory above that for two"
    measured.append(Measurement(text, "MB", more, Reach(100, "100 MB")))
    return measured


# The picture in the docs: scale.py picture '{"out": "scale.svg", "records": [{"size": …}, …]}'.

LINES = {"start": "#d95f02", "save": "#7570b3", "failure": "#e7298a", "row": "#1b9e77"}
WORDS = {
    "start": "a start",
    "save": "a checkpoint with a file from each rank",
    "failure": "a failure of every rank",
    "row": "a report with all ranks' metrics",
}


def play_picture(config: dict[str, Any]) -> None:
    records = sorted(config["records"], key=lambda record: record["size"])

    def x(size: float) -> float:
        return 70 + 170 * (math.log10(size) - 2)

    def y(seconds: float) -> float:
        return 260 - 60 * (math.log10(seconds) + 3)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 310" font-family="sans-serif" '
        'font-size="12"><rect width="720" height="310" fill="white"/>'
    ]
    for power, text in ((-3, "1 ms"), (-2, "10 ms"), (-1, "0.1 s"), (0, "1 s"), (1, "10 s")):
        high = y(10.0**power)
        parts.append(f'<path d="M70 {high}H410" stroke="#ddd"/>')
        parts.append(f'<text x="60" y="{high + 4}" text-anchor="end">{text}</text>')
    for size in (100, 1_000, 10_000):
        parts.append(f'<path d="M{x(size)} 20V260" stroke="#ddd"/>')
        parts.append(f'<text x="{x(size)}" y="278" text-anchor="middle">{size:,}</text>')
    parts.append('<text x="240" y="300" text-anchor="middle">simulated workers</text>')
    for key, color in LINES.items():
        points = " ".join(f"{x(r['size']):.0f},{y(r[key]):.0f}" for r in records)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        last = records[-1]
        parts.append(f'<text x="420" y="{y(last[key]) + 4:.0f}" fill="{color}">')
        parts.append(f"{WORDS[key]}: {last[key]:.2g} s</text>")
    with open(config["out"], "w", encoding="utf-8") as file:
        file.write("\n".join([*parts, "</svg>", ""]))


if __name__ == "__main__":
    common.play({"nodes": play_nodes, "driver": play_driver, "picture": play_picture})
