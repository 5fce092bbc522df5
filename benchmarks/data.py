"""How fast do two workers get tensors from Parquet and CSV files, and with how much memory?"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import common
from common import Against, Bench, Measurement, ProgramFailed, Reach

FILE = "data.py"
FEATURES = 8
"""Columns of numbers (float32, all different), and as many of kinds (int32, a thousand of them)."""
BATCH = 4096
PARQUET_BYTES = 1 << 30
"""In memory. Written with Arrow's defaults: dictionaries, Snappy."""
CSV_BYTES = 200 << 20
"""On disk."""
SAMPLE_S = 0.1


# Programs. Every one emits, for each rank, when it started, had its first batch and ended.


def consume(batches: Iterable[Any], config: dict[str, Any], rank: int, started: float) -> None:
    """Take every batch; the labels' sum proves which rows they were."""
    rows = total = 0
    first = 0.0
    for batch in batches:
        first = first or time.monotonic()
        rows += len(batch["label"])
        total += int(batch["label"].sum())
    ended = time.monotonic()
    times = {"started": started, "first": first, "ended": ended}
    common.emit(config["out"], fit=config["fit"], rank=rank, rows=rows, total=total, **times)


def train_function(config: dict[str, Any]) -> None:
    """The same for lockstep and Ray: so is the API."""
    import torch.distributed as dist

    train = importlib.import_module(config["module"])
    rank = train.get_context().get_world_rank()
    shard = train.get_dataset_shard("train")
    dist.barrier()
    started = time.monotonic()
    consume(shard.iter_torch_batches(batch_size=BATCH), config, rank, started)


def play_lockstep(config: dict[str, Any]) -> None:
    import lockstep.data

    config = {**config, "module": "lockstep.train"}
    _fits(common.lockstep_fit, config, lambda: _dataset(lockstep.data, config))


def play_ray(config: dict[str, Any]) -> None:
    import ray.data

    common.start_ray(config)
    config = {**config, "module": "ray.train"}
    _fits(common.ray_fit, config, lambda: _dataset(ray.data, config))


def _dataset(data: Any, config: dict[str, Any]) -> Any:
    read = data.read_parquet if config["format"] == "parquet" else data.read_csv
    dataset = read(config["source"])
    if config["shuffle"] == "windows":
        return dataset.random_shuffle(seed=1)
    if config["shuffle"] == "full":
        return dataset.random_shuffle(seed=1, window="full")
    return dataset


def _fits(fit: Any, config: dict[str, Any], dataset: Callable[[], Any]) -> None:
    for number in range(config["fits"]):
        called = time.monotonic()
        fit(train_function, {**config, "fit": number}, datasets={"train": dataset()})
        common.emit(config["out"], fit=number, called=called)


def play_arrow(config: dict[str, Any]) -> None:
    """The ceiling: each process scans half of it with Arrow alone."""
    _processes(_arrow_batches, config)


def play_loader(config: dict[str, Any]) -> None:
    """torch's DataLoader over a dataset that reads with Arrow, one loader process a rank."""
    _processes(_loader_batches, config)


def play_hugging_face(config: dict[str, Any]) -> None:
    _processes(_hugging_face_batches, config)


def _processes(batches: Callable[..., Iterable[Any]], config: dict[str, Any]) -> None:
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    for number in range(config["fits"]):
        called = time.monotonic()
        barrier = spawn.Barrier(common.WORKERS)
        arguments = [(batches, {**config, "fit": number}, r, barrier) for r in _ranks()]
        processes = [spawn.Process(target=_process, args=given) for given in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        common.emit(config["out"], fit=number, called=called)


def _process(
    batches: Callable[..., Iterable[Any]], config: dict[str, Any], rank: int, barrier: Any
) -> None:
    import torch

    torch.set_num_threads(1)
    barrier.wait()
    started = time.monotonic()
    consume(batches(config, rank), config, rank, started)


def _ranks() -> range:
    return range(common.WORKERS)


def _arrow_batches(config: dict[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    for batch in _scan(config, rank):
        yield _tensors(batch)


def _scan(config: dict[str, Any], rank: int) -> Iterator[Any]:
    import pyarrow.csv
    import pyarrow.dataset

    files = sorted(map(str, Path(config["source"]).iterdir()))[rank :: common.WORKERS]
    dataset = pyarrow.dataset.dataset(files, format=config["format"])
    yield from dataset.to_batches(batch_size=BATCH)


def _tensors(batch: Any) -> dict[str, Any]:
    import torch

    # Arrow's memory is read-only, which torch warns about; nobody writes here.
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return {name: torch.as_tensor(column.to_numpy()) for name, column in columns}


def _loader_batches(config: dict[str, Any], rank: int) -> Any:
    from torch.utils.data import DataLoader, IterableDataset

    class Scan(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return _arrow_batches(config, rank)

    return DataLoader(
        Scan(), batch_size=None, num_workers=1, multiprocessing_context="fork", prefetch_factor=4
    )


def _hugging_face_batches(config: dict[str, Any], rank: int) -> Any:
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    files = sorted(map(str, Path(config["source"]).iterdir()))
    dataset = load_dataset(config["format"], data_files=files, split="train", streaming=True)
    part = split_dataset_by_node(dataset, rank=rank, world_size=common.WORKERS)
    return part.with_format("torch").iter(batch_size=BATCH)


def play_generate(config: dict[str, Any]) -> None:
    """Write the files: eight of each kind, the same number of rows in each."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    parquet, csv = Path(config["source"], "parquet"), Path(config["source"], "csv")
    rng = np.random.default_rng(0)

    def table(rows: int, start: int) -> Any:
        numbers = {f"number_{i}": rng.random(rows, np.float32) for i in range(FEATURES)}
        kinds = {f"kind_{i}": rng.integers(0, 1000, rows, np.int32) for i in range(FEATURES)}
        return pa.table({**numbers, **kinds, "label": np.arange(start, start + rows)})

    for folder in (parquet, csv):
        folder.mkdir(parents=True)
    rows = config["parquet_bytes"] // (4 * FEATURES + 4 * FEATURES + 8) // 8
    for number in range(8):
        pyarrow.parquet.write_table(
            table(rows, number * rows), parquet / f"{number}.parquet", row_group_size=1 << 17
        )
    probe = table(1000, 10**6)
    pyarrow.csv.write_csv(probe, csv / "probe")
    rows_csv = config["csv_bytes"] // ((csv / "probe").stat().st_size // 1000) // 8
    (csv / "probe").unlink()
    for number in range(8):
        pyarrow.csv.write_csv(table(rows_csv, number * rows_csv), csv / f"{number}.csv")
    common.emit(config["out"], parquet=rows * 8, csv=rows_csv * 8)


# Measuring.


class Runs:
    """One system's programs over one kind of file."""

    def __init__(self, bench: Bench, source: Path, rows: int, kind: str) -> None:
        self._bench, self._source, self._rows, self._kind = bench, source, rows, kind

    def fits(
        self, role: str, *, fits: int = 1, shuffle: str = "", memory: bool = False
    ) -> tuple[list[float], list[float], list[float]]:
        """Rows a second, seconds from the call to the first batch, and peak memory in MB."""
        peers = role in ("ray", "hugging_face")
        settings = {"fits": fits, "shuffle": shuffle, "format": self._kind}
        with self._bench.program(
            FILE,
            role,
            launcher="ray" if peers else "python",
            source=str(self._source),
            env={"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
            **settings,
        ) as program:
            peak = 0.0
            while memory and program.running():
                peak = max(peak, common.pss_megabytes(program.processes()))
                time.sleep(SAMPLE_S)
            program.wait(300)
            records = program.records()
        rates, firsts = [], []
        for number in range(fits):
            mine = [record for record in records if record["fit"] == number]
            ranks = [record for record in mine if "rank" in record]
            called = next(record["called"] for record in mine if "called" in record)
            self._check(role, ranks)
            ended = max(rank["ended"] for rank in ranks)
            started = min(rank["started"] for rank in ranks)
            rates.append(sum(rank["rows"] for rank in ranks) / (ended - started))
            firsts.append(max(rank["first"] for rank in ranks) - called)
        return rates, firsts, [peak] if memory else []

    def _check(self, role: str, ranks: list[dict[str, Any]]) -> None:
        rows, total = sum(r["rows"] for r in ranks), sum(r["total"] for r in ranks)
        # Equal shards may leave a row out, of which the sum is short by less than two of the last.
        if self._rows - rows >= common.WORKERS or rows > self._rows:
            raise ProgramFailed(f"{role} read {rows} of {self._rows} rows")
        missing = self._rows * (self._rows - 1) // 2 - total
        if not 0 <= missing < (self._rows - rows + 1) * self._rows:
            raise ProgramFailed(f"{role} read some rows twice: the labels' sum is off by {missing}")


def measure(bench: Bench) -> list[Measurement]:
    """Parquet, then CSV; ours in turn with the ceiling, then the peers."""
    source = bench.work / "data"
    scale = bench.times(1, 8)
    bench.say("generating files")
    records = bench.run(
        FILE,
        "generate",
        source=str(source),
        parquet_bytes=PARQUET_BYTES // scale,
        csv_bytes=CSV_BYTES // scale,
    )[2]
    measured = []
    for kind, name in (("parquet", "Parquet"), ("csv", "CSV")):
        runs = Runs(bench, source / kind, records[0][kind], kind)
        measured += _measure_kind(bench, runs, name)
    return measured


def _measure_kind(bench: Bench, runs: Runs, name: str) -> list[Measurement]:
    bench.say(f"{name} to torch batches, in turn with a plain Arrow scan")
    ours: list[float] = []
    warm: list[float] = []
    cold: list[float] = []
    ceiling: list[float] = []
    fits = bench.times(3, 2)
    for _ in range(bench.times(3, 1)):
        ceiling += runs.fits("arrow", fits=fits)[0]
        rates, firsts, _ = runs.fits("lockstep", fits=fits)
        ours += rates
        cold.append(firsts[0])
        warm += firsts[1:]
    sizes = [runs.fits("lockstep", memory=True)[2][0] for _ in range(bench.times(3, 1))]
    scan_sizes = [runs.fits("arrow", memory=True)[2][0] for _ in range(bench.times(3, 1))]
    peers = {}
    for system, role in (
        ("Ray Data", "ray"),
        ("Hugging Face, streaming", "hugging_face"),
        ("torch DataLoader over Arrow", "loader"),
    ):
        peers[system] = _peer(bench, runs, system, role)
    rays = peers["Ray Data"]
    rate = Measurement(
        f"{name} to torch batches, rows",
        "/s",
        ours,
        against=[
            Against("plain Arrow scan", ceiling, Reach(0.8, "0.8 of it")),
            Against("Ray Data", rays[0], Reach(8.0, "8×"), rays[3]),
            *(Against(s, p[0], None, p[3]) for s, p in peers.items() if s != "Ray Data"),
        ],
    )
    first = Measurement(
        f"{name}: fit() to the first batch",
        "s",
        warm,
        Reach(0.3, "0.3 s"),
        [
            Against("itself, first fit() of a script", cold),
            *(Against(s, p[1], None, p[3]) for s, p in peers.items()),
        ],
    )
    memory = Measurement(
        f"{name}: peak PSS, all processes",
        "MB",
        sizes,
        against=[
            Against("plain Arrow scan", scan_sizes, Reach(1.0, "not more")),
            Against("Ray Data", rays[2], Reach(4.0, "a quarter"), rays[3]),
            *(Against(s, p[2], None, p[3]) for s, p in peers.items() if s != "Ray Data"),
        ],
    )
    return [rate, *_shuffled(bench, runs, name, ours), first, memory]


def _shuffled(bench: Bench, runs: Runs, name: str, plain: list[float]) -> list[Measurement]:
    """In windows, which is the default for files, and in full: then every rank reads every file."""
    measured = []
    for how, told, reach in (
        ("windows", "shuffled", Reach(0.6, "0.6 of it")),
        ("full", "shuffled in full", None),
    ):
        bench.say(f"{name} {told}")
        rates = [
            rate
            for _ in range(bench.times(2, 1))
            for rate in runs.fits("lockstep", fits=bench.times(3, 2), shuffle=how)[0]
        ]
        against = [Against("itself, unshuffled", plain, reach)]
        measured.append(Measurement(f"{name} {told} (seeded), rows", "/s", rates, against=against))
    return measured


Peer = tuple[list[float], list[float], list[float], str]


def _peer(bench: Bench, runs: Runs, system: str, role: str) -> Peer:
    """Rates, first batches and memory of a peer; why, where there are none."""
    rates: list[float] = []
    firsts: list[float] = []
    sizes: list[float] = []

    def collect() -> list[float]:
        for _ in range(bench.times(2, 1)):
            some_rates, some_firsts, _ = runs.fits(role)
            rates.extend(some_rates)
            firsts.extend(some_firsts)
        # In a run of its own: looking at the memory of many processes takes time.
        sizes.extend(runs.fits(role, memory=True)[2])
        return rates

    note = bench.peer(system, collect).note
    return rates, firsts, sizes, note


if __name__ == "__main__":
    common.play(
        {
            "generate": play_generate,
            "lockstep": play_lockstep,
            "ray": play_ray,
            "arrow": play_arrow,
            "loader": play_loader,
            "hugging_face": play_hugging_face,
        }
    )
