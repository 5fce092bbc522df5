"""How many times faster is a tokenizer in Python in processes, beside one in the reading thread?"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import common
from common import Against, Bench, Measurement, ProgramFailed, Reach

FILE = "data_processes.py"
ROWS = 40_000
WORDS = 60
"""Words of a row; about 400 characters."""
LENGTH = 64
FILES = 4
BATCH = 256


def words() -> list[str]:
    """A vocabulary of made-up words."""
    import random

    rng = random.Random(0)
    return ["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) for _ in range(5000)]


class Tokenize:
    """As tokenizers in Python work: letter by letter, and a word is looked up."""

    def __init__(self) -> None:
        self.numbers = {word: number for number, word in enumerate(words())}

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        rows = []
        for text in batch["text"]:
            ids = []
            for word in text.split():
                number = 0
                for letter in word:
                    number = (number * 31 + ord(letter)) & 0xFFFF
                ids.append(self.numbers.get(word, number))
            rows.append((ids + [0] * LENGTH)[:LENGTH])
        return {"ids": np.array(rows, np.int32)}


def play_generate(config: dict[str, Any]) -> None:
    """Write the files."""
    import random

    import pyarrow as pa
    import pyarrow.parquet

    rng, known = random.Random(1), words()
    source = Path(config["source"])
    source.mkdir()
    for number in range(FILES):
        texts = [" ".join(rng.choices(known, k=WORDS)) for _ in range(config["rows"] // FILES)]
        table = pa.table({"text": texts})
        pyarrow.parquet.write_table(table, source / f"{number}.parquet", row_group_size=5000)


def play_lockstep(config: dict[str, Any]) -> None:
    """An epoch in the thread, an epoch in processes, in turn; the first of each is not counted."""
    import lockstep.data

    source = lockstep.data.read_parquet(config["source"])
    here = source.map_batches(Tokenize)
    there = source.map_batches(Tokenize, processes=True, concurrency=config["processes"])
    for number in range(config["epochs"] + 1):
        for name, dataset in (("here", here), ("processes", there)):
            rate = _rate(dataset, config["rows"])
            if number:
                common.emit(config["out"], system=name, rate=rate)


def play_ray(config: dict[str, Any]) -> None:
    """The same in Ray's actors; each epoch is an execution, which starts them again."""
    import ray.data

    common.start_ray(config)
    source = ray.data.read_parquet(config["source"])
    dataset = source.map_batches(Tokenize, concurrency=config["processes"])
    for number in range(config["epochs"] + 1):
        rate = _rate(dataset, config["rows"])
        if number:
            common.emit(config["out"], system="ray", rate=rate)


def _rate(dataset: Any, rows: int) -> float:
    started, total = time.monotonic(), 0
    for batch in dataset.iter_batches(batch_size=BATCH):
        total += len(batch["ids"])
    if total != rows:
        raise ProgramFailed(f"{total} of {rows} rows")
    return rows / (time.monotonic() - started)


def measure(bench: Bench) -> list[Measurement]:
    """In turn in one program, so that the machine's slower moments meet both."""
    source, rows = bench.work / "text", bench.times(ROWS, ROWS // 4)
    cores = len(os.sched_getaffinity(0))
    given = {"source": str(source), "rows": rows, "processes": cores}
    bench.say("generating files")
    bench.run(FILE, "generate", **given)
    bench.say(f"a tokenizer in the thread and in {cores} processes, in turn")
    records = bench.run(FILE, "lockstep", epochs=bench.times(7, 2), **given)[2]
    rates = {
        name: [record["rate"] for record in records if record["system"] == name]
        for name in ("here", "processes")
    }
    rays: list[float] = []

    def collect() -> list[float]:
        found = bench.run(FILE, "ray", launcher="ray", epochs=bench.times(2, 1), **given)[2]
        rays.extend(record["rate"] for record in found)
        return rays

    note = bench.peer("Ray Data", collect).note
    return [
        Measurement(
            f"a tokenizer in Python in {cores} processes, rows",
            "/s",
            rates["processes"],
            against=[
                Against(
                    "itself, in the reading thread",
                    rates["here"],
                    Reach(0.85 * cores, f"{0.85 * cores:.2g}×: the cores, less 15 %"),
                    in_turn=True,
                ),
                Against("Ray Data", rays, None, note),
            ],
        )
    ]


if __name__ == "__main__":
    common.play({"generate": play_generate, "lockstep": play_lockstep, "ray": play_ray})
