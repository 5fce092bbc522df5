"""What the benchmarks share: running programs bounded in time, medians, and the table.

Each question is one file. Run by ``run.py`` it is a module whose ``measure(bench)`` returns
measurements; run as a program it plays one role, such as the training script of one peer, and
writes what it timed as JSON lines. Imported by programs too, so imports here stay cheap.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORKERS = 2
PROGRAM_TIMEOUT_S = 120.0
OUTPUT = "out.jsonl"
_MARK = "LOCKSTEP_BENCH_PROGRAM"


# What programs call.


def emit(path: str, **record: Any) -> None:
    """Append one record to the program's output; any process may, at the same time."""
    line = json.dumps(record).encode() + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


def play(roles: Mapping[str, Callable[[dict[str, Any]], None]]) -> None:
    """The entry of a question's file as a program: ``file.py ROLE JSON``."""
    roles[sys.argv[1]](json.loads(sys.argv[2]))


def lockstep_fit(
    function: Callable[..., Any],
    config: dict[str, Any],
    datasets: dict[str, Any] | None = None,
    **run_options: Any,
) -> None:
    """One fit() on two torch workers, everything else at its default."""
    from lockstep.train import RunConfig, ScalingConfig
    from lockstep.train.torch import TorchTrainer

    TorchTrainer(
        function,
        train_loop_config=config,
        datasets=datasets,
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(storage_path=config["work"] + "/runs", **run_options),
    ).fit()


def start_ray(config: dict[str, Any]) -> None:
    """A Ray of its own that listens on loopback only, unless there is one already."""
    import ray

    if not ray.is_initialized():
        ray.init(
            _node_ip_address="127.0.0.1",
            include_dashboard=False,
            num_cpus=WORKERS + 2,
            _temp_dir=config["work"] + "/ray",
        )


def ray_fit(
    function: Callable[..., Any],
    config: dict[str, Any],
    datasets: dict[str, Any] | None = None,
    **run_options: Any,
) -> None:
    """The same under Ray Train."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    start_ray(config)
    TorchTrainer(
        function,
        train_loop_config=config,
        datasets=datasets,
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(storage_path=config["work"] + "/runs", **run_options),
    ).fit()


def torchrun_group() -> int:
    """Join the gloo group that torchrun prepared; this process's rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist.get_rank()


# What run.py and the questions' measure() call.


class ProgramFailed(Exception):
    """A program did not do what it was started for; the message ends with its last output."""


class Program:
    """One running program and every process it started, found by a mark in the environment."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], work: Path) -> None:
        import subprocess

        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.work = work
        self._out = work / OUTPUT
        self._log = work / "log.txt"
        with self._log.open("wb") as stream:
            self.started = time.monotonic()
            self._process = subprocess.Popen(
                command,
                env={**env, _MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, timeout: float = PROGRAM_TIMEOUT_S) -> float:
        """Wait for the end; how long the program ran, in seconds."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self.kill()

        # Popen.wait(timeout) polls, up to 50 ms apart: too coarse for what is timed here.
        timer = threading.Timer(timeout, end)
        timer.start()
        try:
            code = self._process.wait()
        finally:
            timer.cancel()
        seconds = time.monotonic() - self.started
        if late.is_set():
            raise ProgramFailed(f"took over {timeout:.0f} s and was ended\n{self._last_lines()}")
        if code != 0:
            raise ProgramFailed(f"exited with {code}\n{self._last_lines()}")
        return seconds

    def wait_for_records(self, count: int, timeout: float = PROGRAM_TIMEOUT_S) -> None:
        """Wait until the program has emitted this many records."""
        deadline = time.monotonic() + timeout
        while len(self.records()) < count:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ProgramFailed(f"never got ready\n{self._last_lines()}")
            time.sleep(0.05)

    def records(self) -> list[dict[str, Any]]:
        """What the program has emitted so far."""
        if not self._out.exists():
            return []
        return [json.loads(line) for line in self._out.read_text().splitlines()]

    def processes(self) -> list[int]:
        """Every live process of the program, however it was started."""
        wanted = f"{_MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def running(self) -> bool:
        """Whether the program itself has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End every process of the program."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End what is left and forget the process."""
        self.kill()
        self._process.wait()

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


@dataclass(frozen=True)
class Reach:
    """What we want: a figure, or a ratio against a peer (above 1: lockstep is better)."""

    bound: float
    text: str


@dataclass
class Against:
    """One peer's figures for the same thing; no samples where it could not be measured."""

    system: str
    samples: list[float]
    reach: Reach | None = None
    note: str = ""
    in_turn: bool = False
    """Each sample was taken next to ours of the same place: compared one by one, the machine's
    slower and faster minutes cancel out."""


@dataclass
class Measurement:
    """One thing measured, ours and the peers'. ``unit`` is ``s``, ``/s`` or ``MB``."""

    what: str
    unit: str
    samples: list[float]
    reach: Reach | None = None
    against: list[Against] = field(default_factory=list)

    @property
    def higher_is_better(self) -> bool:
        """Whether more is better: a rate; otherwise less is."""
        return self.unit == "/s"

    @property
    def value(self) -> float:
        """The median of ours."""
        return median(self.samples)

    @property
    def reached(self) -> bool | None:
        """Whether the figure is within reach; None where none is set or noise hides it."""
        if self.reach is None:
            return None
        low, high = _interval(self.samples)
        if self.higher_is_better:
            return _judge(low, high, self.reach.bound)
        return _judge(-high, -low, -self.reach.bound)

    def ratio(self, peer: Against) -> float | None:
        """How many times better than the peer; below 1 the peer is better."""
        if not peer.samples:
            return None
        if peer.in_turn:
            return median(self._ratios(peer))
        return self._better(self.value, median(peer.samples))

    def ratio_interval(self, peer: Against) -> tuple[float, float] | None:
        """Where the ratio lies, as far as the noise of both tells (95 %, bootstrap)."""
        if not peer.samples:
            return None
        if peer.in_turn:
            return _interval(self._ratios(peer))
        ours, theirs = _resampled_medians(self.samples, 1), _resampled_medians(peer.samples, 2)
        return _middle(list(map(self._better, ours, theirs)))

    def _ratios(self, peer: Against) -> list[float]:
        return [self._better(*pair) for pair in zip(self.samples, peer.samples, strict=True)]

    def _better(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.higher_is_better else theirs / ours

    def peer_reached(self, peer: Against) -> bool | None:
        """Whether the ratio is within reach; None where none is set or noise hides it."""
        interval = self.ratio_interval(peer)
        if peer.reach is None or interval is None:
            return None
        return _judge(*interval, peer.reach.bound)


def _judge(low: float, high: float, bound: float) -> bool | None:
    return True if low >= bound else False if high < bound else None


def _interval(samples: Sequence[float]) -> tuple[float, float]:
    return _middle(_resampled_medians(samples, 1))


def _resampled_medians(samples: Sequence[float], seed: int) -> list[float]:
    import random

    chance = random.Random(seed)
    return [median(chance.choices(samples, k=len(samples))) for _ in range(1000)]


def _middle(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[int(0.025 * len(ordered))], ordered[int(0.975 * len(ordered)) - 1]


def median(samples: Sequence[float]) -> float:
    """The median."""
    import statistics

    return statistics.median(samples)


@dataclass
class Bench:
    """What a question's ``measure`` is given: how thorough to be, and how to run programs."""

    work: Path
    quick: bool
    peers_python: Path | None
    say: Callable[[str], None]
    _count: int = 0

    def times(self, full: int, quick: int) -> int:
        """How many repetitions."""
        return quick if self.quick else full

    @contextmanager
    def program(
        self, file: str, role: str, *, launcher: str = "python", **config: Any
    ) -> Iterator[Program]:
        """Start ``file`` in ``role``, with python, run or reload (lockstep's), torchrun or ray.

        It is ended on leaving.
        """
        if launcher == "ray" and self.peers_python is None:
            raise ProgramFailed("no environment with Ray: run make bench")
        self._count += 1
        # Short, for Ray puts sockets below it and their paths are limited to 107 characters.
        work = self.work / f"p{self._count}"
        work.mkdir()
        env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        python_path = [str(HERE)]
        # Everyone talks over loopback: none of this is about looking up the host's name.
        env["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
        env.update(config.pop("env", {}))
        python = sys.executable
        flags: list[str] = []
        if launcher == "ray":
            python = str(self.peers_python)
            env["RAY_USAGE_STATS_ENABLED"] = "0"
            env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        elif env.get("PYTHONPATH"):
            python_path.append(env["PYTHONPATH"])
        if launcher == "torchrun":
            flags = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
            flags += config.pop("flags", [])
        if launcher in ("run", "reload"):
            flags = ["-m", "lockstep", "run", *(["--reload"] if launcher == "reload" else [])]
        else:
            env["LOCKSTEP_WARM"] = "0"  # a server of the user's must not make cold starts warm
        env["PYTHONPATH"] = os.pathsep.join(python_path)
        settings = json.dumps({**config, "out": str(work / OUTPUT), "work": str(work)})
        command = [python, *flags, str(HERE / file), role, settings]
        program = Program(command, env, work)
        try:
            yield program
        finally:
            program.close()
            _remove(work)

    def run(
        self, file: str, role: str, *, launcher: str = "python", **config: Any
    ) -> tuple[float, float, list[dict[str, Any]]]:
        """Run a program to its end: when it started, how long it took, what it emitted."""
        with self.program(file, role, launcher=launcher, **config) as program:
            seconds = program.wait()
            return program.started, seconds, program.records()

    def peer(self, system: str, collect: Callable[[], Any], reach: Reach | None = None) -> Against:
        """Measure a peer; one that is missing or fails is said in the table."""
        self.say(f"  {system}")
        try:
            return Against(system, list(collect()), reach)
        except ProgramFailed as error:
            self.say(f"  {system}: {error}")
            return Against(system, [], reach, str(error).splitlines()[0])


def lockstep_command(variables: Mapping[str, str], *arguments: str) -> str:
    """What a ``lockstep`` command prints, with these variables."""
    import subprocess

    env = {**os.environ, **variables}
    # As the programs: where it looks for a server depends on it.
    path = [str(HERE), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    command = [sys.executable, "-m", "lockstep", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def pss_megabytes(pids: Sequence[int]) -> float:
    """The proportional set size of these processes: a page that n share counts 1/n in each."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def foreign_load(seconds: float = 1.0) -> float | None:
    """How many cores are busy while nothing of ours runs; None where that cannot be read."""

    def busy() -> int:
        fields = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(fields[:8]) - fields[3] - fields[4]

    try:
        before = busy()
        time.sleep(seconds)
        return (busy() - before) / os.sysconf("SC_CLK_TCK") / seconds
    except OSError:
        return None


def _remove(directory: Path) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
