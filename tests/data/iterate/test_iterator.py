"""Iterations: batches, tensors, threads that end, memory that is bounded, time that is measured."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import lockstep.data
from lockstep.data import Dataset, DataShard


def blocks(n: int, count: int = 4) -> Dataset:
    return lockstep.data.range(n, override_num_blocks=count)


def shard(dataset: Dataset, size: int = 1, rank: int = 0, **options: Any) -> DataShard:
    return dataset.prepare(size, **options).shard(rank)


def readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("lockstep-data")]


class TestBatches:
    @pytest.mark.parametrize("prefetch", [0, 1, 4])
    @pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
    @pytest.mark.parametrize("batch_size", [1, 7, 25, 30, 200, None])
    def test_sizes_and_formats(
        self, batch_size: int | None, batch_format: str, prefetch: int
    ) -> None:
        dataset = blocks(103)
        for drop_last in (False, True):
            batches = list(
                dataset.iter_batches(
                    batch_size=batch_size,
                    batch_format=batch_format,
                    prefetch_batches=prefetch,
                    drop_last=drop_last,
                )
            )
            kinds = {"numpy": "dict", "pandas": "DataFrame", "pyarrow": "Table"}
            assert {type(batch).__name__ for batch in batches} <= {kinds[batch_format]}
            lengths = [len(b["id"]) for b in batches]
            rows = [int(i) for b in batches for i in np.asarray(b["id"])]
            if batch_size is None:
                assert lengths == [26, 26, 26, 25]
            else:
                full, rest = divmod(103, batch_size)
                assert lengths == [batch_size] * full + [rest] * (rest > 0 and not drop_last)
            assert rows == list(range(sum(lengths)))

    def test_every_iteration_is_an_epoch_and_next_works(self) -> None:
        batches = blocks(10).iter_batches(batch_size=4)
        assert [len(b["id"]) for b in batches] == [4, 4, 2]
        assert [len(b["id"]) for b in batches] == [4, 4, 2]
        assert [next(batches)["id"][0] for _ in range(3)] == [0, 4, 8]
        with pytest.raises(StopIteration):
            next(batches)
        rows = shard(blocks(3)).iter_rows()
        assert next(rows) == {"id": 0}
        assert list(rows) == [{"id": 0}, {"id": 1}, {"id": 2}]

    def test_rows(self) -> None:
        assert [row["id"] for row in blocks(5000).iter_rows()] == list(range(5000))
        plan = blocks(10).prepare(3, order="global", equal=False)
        seen = [[row["id"] for row in plan.shard(rank).iter_rows()] for rank in range(3)]
        assert seen == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch_size": 0}, "batch_size=0 is too small"),
            ({"batch_size": 2.5}, "batch_size=2.5 is not an integer"),
            ({"prefetch_batches": -1}, "prefetch_batches=-1 is too small"),
            ({"local_shuffle_buffer_size": 0}, "local_shuffle_buffer_size=0 is too small"),
            ({"batch_size": None, "local_shuffle_buffer_size": 9}, "needs a batch_size"),
            ({"batch_format": "list"}, "batch_format='list' is not known"),
        ],
    )
    def test_arguments_are_checked_when_given(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises((ValueError, TypeError), match=message):
            blocks(5).iter_batches(**options)

    def test_numbers_of_numpy(self) -> None:
        five: Any = np.int64(5)
        seed: Any = np.uint8(3)
        dataset = lockstep.data.range(five * 4).random_shuffle(seed=seed).limit(five * 3)
        part = shard(dataset, five - 3, order="global", seed=five)
        batches = part.iter_batches(
            batch_size=five, local_shuffle_buffer_size=five, local_shuffle_seed=five
        )
        assert len(next(batches)["id"]) == 3
        assert json.loads(json.dumps(part.state_dict())) == part.state_dict()
        assert lockstep.data.DataConfig(seed=five).seed == 5
        for wrong in (2.0, True, "4"):
            with pytest.raises(ValueError, match=r"limit\(.*\) is not an integer; give 0"):
                dataset.limit(wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"random_shuffle\(seed=.*\): give an integer"):
                dataset.random_shuffle(seed=wrong)  # type: ignore[arg-type]

    def test_global_batches_need_a_row_for_each_worker(self) -> None:
        part = shard(blocks(20), 3, order="global")
        with pytest.raises(ValueError, match="batch_size=2 counts the rows of all 3 workers"):
            next(part.iter_batches(batch_size=2))
        with pytest.raises(ValueError, match='batch_size=None needs order="local"'):
            next(part.iter_batches(batch_size=None))

    def test_a_local_shuffle_permutes_each_so_many_rows(self) -> None:
        def rows(seed: int | None) -> list[int]:
            batches = blocks(100).iter_batches(
                batch_size=8, local_shuffle_buffer_size=20, local_shuffle_seed=seed
            )
            return [int(i) for batch in batches for i in batch["id"]]

        one = rows(1)
        for start in range(0, 100, 20):
            window = one[start : start + 20]
            assert sorted(window) == list(range(start, start + 20)) != window
        assert rows(1) == one
        assert rows(2) != one
        assert rows(None) != rows(None)

    def test_two_iterations_at_once(self) -> None:
        part = shard(blocks(100).random_shuffle(seed=1))
        first, second = part.iter_batches(batch_size=50), part.iter_batches(batch_size=50)
        epochs: list[list[int]] = [[], []]
        for one, two in zip(first, second, strict=True):
            epochs[0] += one["id"].tolist()
            epochs[1] += two["id"].tolist()
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100))
        assert epochs[0] != epochs[1]
        assert part.state_dict()["epoch"] == 2

    def test_numpy_batches_share_the_memory_of_the_table(self) -> None:
        table = pa.table({"x": np.arange(100)})
        batch = next(lockstep.data.from_arrow(table).iter_batches(batch_size=10))
        assert np.shares_memory(batch["x"], table["x"].chunk(0).to_numpy())
        assert not batch["x"].flags.writeable

    def test_whole_shards(self) -> None:
        part = shard(blocks(10), 2, 1)
        assert part.to_pandas()["id"].tolist() == [5, 6, 7, 8, 9]
        assert part.materialize().count() == 5
        assert part.to_arrow().num_rows == 5
        assert part.schema().names == ["id"]
        assert (part.count(), part.world_size) == (5, 2)
        assert part.state_dict()["epoch"] == 0
        assert repr(part) == "DataShard(rank=1, world_size=2, rows=5)"
        empty = shard(blocks(1), 2, 1)
        assert empty.to_pandas().columns.tolist() == ["id"]
        with pytest.raises(ValueError, match="rank=2 is not one of 2 workers"):
            blocks(10).prepare(2).shard(2)

    def test_plans_are_checked(self) -> None:
        for wrong in (0, -1, True, 1.5):
            with pytest.raises(ValueError, match=rf"world_size={wrong} .*; give 1 or more"):
                blocks(3).prepare(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="order='random' is not known"):
            blocks(3).prepare(1, order="random")


class TestTensors:
    def test_batches(self) -> None:
        dataset = lockstep.data.from_numpy(
            {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "y": np.arange(6)}
        )
        batches = list(shard(dataset).iter_torch_batches(batch_size=4))
        assert [b["x"].shape for b in batches] == [(4, 2), (2, 2)]
        assert torch.equal(torch.cat([b["y"] for b in batches]), torch.arange(6))
        assert batches[0]["x"].dtype == torch.float32
        (one,) = dataset.iter_torch_batches(dtypes=torch.float64, device="cpu")
        assert {tensor.dtype for tensor in one.values()} == {torch.float64}
        (one,) = dataset.iter_torch_batches(dtypes={"y": torch.int32})
        assert (one["x"].dtype, one["y"].dtype) == (torch.float32, torch.int32)

    @pytest.mark.parametrize("batch_size", [4, 5])
    def test_writing_to_a_tensor_changes_nothing_else(
        self, batch_size: int, tmp_path: Path
    ) -> None:
        table = pa.table({"x": np.arange(20), "l": [[1, 2]] * 20})
        pq.write_table(table, tmp_path / "a", row_group_size=7)
        stored = lockstep.data.read_parquet(tmp_path / "a")
        constant = np.arange(100)

        def add(batch: dict[str, Any]) -> dict[str, Any]:
            return {**batch, "c": constant[: len(batch["x"])]}

        memory = lockstep.data.from_arrow(table)
        for dataset in (
            memory,
            memory.random_shuffle(seed=1),
            memory.map_batches(add),
            stored,
            stored.limit(15).union(stored.limit(15)),
            stored.random_shuffle(seed=1),
        ):
            for _ in range(2):
                seen = []
                for batch in dataset.iter_torch_batches(batch_size=batch_size):
                    seen += batch["x"].tolist()
                    for tensor in batch.values():
                        tensor += 1000
                assert sorted(set(seen)) == list(range(20)) or sorted(set(seen)) == [*range(15)]
        assert constant.tolist() == list(range(100))
        assert table["x"].to_pylist() == list(range(20))

    def test_what_cannot_be_a_tensor(self) -> None:
        dataset = lockstep.data.from_items([{"s": "a", "x": 1}])
        with pytest.raises(TypeError, match=r"Column 's' of type str .* drop_columns"):
            next(dataset.iter_torch_batches())
        (batch,) = dataset.iter_torch_batches(collate_fn=lambda b: (list(b["s"]), b["x"] * 2))
        assert batch[0] == ["a"]
        with pytest.raises(ValueError, match="give one of the two"):
            dataset.iter_torch_batches(collate_fn=lambda b: b, dtypes=torch.float32)

    def test_a_collate_function_runs_in_a_thread_of_its_own(self) -> None:
        names = []

        def collate(batch: dict[str, Any]) -> Any:
            names.append(threading.current_thread().name)
            return torch.as_tensor(batch["id"].copy())

        batches = blocks(100).iter_torch_batches(batch_size=10, collate_fn=collate)
        assert torch.equal(torch.cat(list(batches)), torch.arange(100))
        assert set(names) == {"lockstep-data-convert"}
        assert list(blocks(4).iter_torch_batches(collate_fn=collate, prefetch_batches=0))
        assert names[-1] == "MainThread"

    def test_the_device_of_a_worker(self) -> None:
        part = shard(blocks(4))
        part.auto_device = lambda: "meta"
        assert next(part.iter_torch_batches())["id"].device.type == "meta"
        assert next(part.iter_torch_batches(device="cpu"))["id"].device.type == "cpu"

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(ValueError, match="device='cuda': torch sees no GPU in this process"):
            blocks(4).iter_torch_batches(device="cuda")

    def test_to_torch(self) -> None:
        dataset = lockstep.data.from_items([{"a": i, "b": i * 2, "y": i * 10} for i in range(6)])
        features, label = next(iter(dataset.to_torch(label_column="y", batch_size=3)))
        assert (features.shape, label.shape) == ((3, 2), (3, 1))
        features, label = next(
            iter(
                dataset.to_torch(
                    label_column="y",
                    feature_columns={"one": ["a"], "two": ["a", "b"]},
                    feature_column_dtypes={"one": torch.float32, "two": torch.float64},
                    label_column_dtype=torch.int32,
                    batch_size=2,
                    unsqueeze_label_tensor=False,
                )
            )
        )
        assert features["two"].tolist() == [[0, 0], [1, 2]]
        assert (features["one"].dtype, label.dtype) == (torch.float32, torch.int32)
        assert label.tolist() == [0, 10]
        parts, none = next(
            iter(
                dataset.to_torch(
                    feature_columns=[["a"], ["b", "y"]], unsqueeze_feature_tensors=False
                )
            )
        )
        assert none is None
        assert [part.tolist() for part in parts] == [[0], [[0, 0]]]
        loader = torch.utils.data.DataLoader(
            dataset.to_torch(label_column="y", batch_size=2), batch_size=None
        )
        assert len(list(loader)) == len(list(loader)) == 3
        with pytest.raises(KeyError, match="to_torch: there is no column 'q'"):
            dataset.to_torch(label_column="q")

    @pytest.mark.timeout(180)
    def test_to_torch_in_the_processes_of_a_loader(self) -> None:
        def read() -> str:
            batches = blocks(6).to_torch(batch_size=2)
            loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=1)
            try:
                list(loader)
            except RuntimeError as error:
                return str(error)
            return "no error"

        assert "use num_workers=0" in read()
        gc.collect()  # the loader's pipes end with it


class TestThreads:
    def test_an_iteration_left_early_leaves_nothing(self) -> None:
        for _ in blocks(10_000_000, 100).iter_batches(batch_size=10):
            assert readers()
            break
        assert not readers()
        batches = iter(blocks(10_000_000, 100).iter_torch_batches(batch_size=10, collate_fn=dict))
        next(batches)
        assert len(readers()) == 2
        del batches
        assert not readers()
        again = blocks(100).iter_batches(batch_size=10)
        next(again)
        del again
        assert not readers()

    def test_an_exception_in_the_loop_leaves_nothing(self) -> None:
        def loop() -> None:
            for _ in blocks(10_000_000, 100).iter_batches(batch_size=10):
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            loop()
        gc.collect()
        assert not readers()

    def test_an_iteration_in_a_cycle_is_collected(self) -> None:
        class Holder:
            pass

        holder: Any = Holder()
        holder.me = holder
        holder.batches = iter(blocks(10_000_000, 100).iter_batches(batch_size=10))
        next(holder.batches)
        gone = weakref.ref(holder)
        del holder
        gc.collect()
        assert gone() is None
        assert not readers()

    def test_a_thread_ends_with_its_iteration(self) -> None:
        running = iter(blocks(100).iter_batches(batch_size=10))
        assert len(list(running)) == 10
        assert not readers()
        with pytest.raises(StopIteration):
            next(running)

    @pytest.mark.parametrize("prefetch", [0, 1])
    def test_an_error_comes_where_its_batch_would(self, prefetch: int) -> None:
        def fail_late(batch: dict[str, Any]) -> dict[str, Any]:
            if batch["id"][0] >= 50:
                raise RuntimeError("late")
            return batch

        running = iter(
            blocks(100)
            .map_batches(fail_late)
            .iter_batches(batch_size=25, prefetch_batches=prefetch)
        )
        assert [next(running)["id"][0] for _ in range(2)] == [0, 25]
        with pytest.raises(RuntimeError, match="late"):
            next(running)
        with pytest.raises(StopIteration):
            next(running)
        assert not readers()

    def test_backpressure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reader works ahead as far as it may, and no further."""
        monkeypatch.setattr("lockstep.data.iterate.iterator.PREFETCHED_BYTES", 1000)
        read = []
        ahead, further = threading.Event(), threading.Event()

        def note(batch: dict[str, Any]) -> dict[str, Any]:
            read.append(int(batch["id"][0]))
            if len(read) >= 4:
                (ahead if len(read) == 4 else further).set()
            return batch

        # Blocks of 400 bytes: one in use, two lie ready, one waits to be put there.
        running = iter(blocks(5000, 100).map_batches(note).iter_batches(batch_size=50))
        next(running)
        assert ahead.wait(30)
        assert not further.wait(0.3)
        next(running)
        assert further.wait(30)

    @pytest.mark.timeout(180)
    def test_a_process_ends_while_an_iteration_is_under_way(self) -> None:
        code = (
            "import lockstep.data\n"
            "kept = iter(lockstep.data.range(10**7).iter_batches(batch_size=10))\n"
            "next(kept)\n"
            "print('done')\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=170)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"done\n", b"")


MEMORY = """
import resource, sys
import numpy as np
import lockstep.data

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

# 1.6 GB in all, in blocks of 16 MB
dataset = lockstep.data.range_tensor(200_000, shape=(1000,))
dataset = dataset.map_batches(lambda batch: {"data": batch["data"] * 2, "x": batch["data"][:, 0]})
if "shuffle" in sys.argv:
    dataset = dataset.random_shuffle(seed=1)
shard = dataset.prepare(1, order=sys.argv[1]).shard(0)
before = peak()
rows = 0
for batch in shard.iter_batches(batch_size=1024):
    rows += len(batch["x"])
assert rows == 200_000, rows
print(peak() - before)
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("arguments", [["local"], ["local", "shuffle"], ["global", "shuffle"]])
def test_memory_is_bounded(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 700, "MB more than before the iteration began"


class TestStats:
    def test_waiting_is_measured(self) -> None:
        import time

        def slowly(batch: dict[str, Any]) -> dict[str, Any]:
            time.sleep(0.2)
            return batch

        waiting = shard(blocks(100).map_batches(slowly))
        for _ in waiting.iter_batches(batch_size=25):
            pass
        stats = waiting.stats()
        assert (stats.rows, stats.batches) == (100, 4)
        assert stats.waited_s >= 0.75
        assert stats.wait_share == stats.waited_s / (stats.waited_s + stats.used_s) > 0.5
        assert str(stats).startswith(f"100 rows in 4 batches; waited {stats.waited_s:.3f} s for")
        busy = shard(blocks(100))
        running = iter(busy.iter_batches(batch_size=25))
        next(running)  # what comes before it is waiting, however long a thread takes to begin
        waited = busy.stats().waited_s
        time.sleep(0.2)
        for _ in running:
            time.sleep(0.2)
        assert busy.stats().used_s >= 0.6
        assert busy.stats().waited_s - waited < busy.stats().used_s / 2
        dataset = blocks(10)
        list(dataset.iter_batches())
        assert dataset.stats().rows == 10

    def test_nothing_yet(self) -> None:
        assert blocks(10).stats().wait_share == 0


class TestPickling:
    @pytest.mark.timeout(180)
    def test_a_plan_goes_to_another_process(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet", row_group_size=9)
        (tmp_path / "b.csv").write_text("x\n" + "\n".join(map(str, range(100))))
        factor = 3

        class Times:
            def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
                return {"x": batch["x"] * factor}

        for dataset in (
            lockstep.data.read_parquet(tmp_path / "a.parquet"),
            lockstep.data.read_csv(tmp_path / "b.csv"),
            lockstep.data.from_items([{"x": i} for i in range(100)]),
        ):
            plan = dataset.map_batches(Times).random_shuffle(seed=1).prepare(2)
            sent = cloudpickle.dumps(plan)
            (tmp_path / "plan").write_bytes(sent)
            code = (
                "import pickle, sys\n"
                "plan = pickle.load(open(sys.argv[1], 'rb'))\n"
                "shard = plan.shard(1)\n"
                "print([int(i) for b in shard.iter_batches() for i in b['x']])\n"
            )
            done = subprocess.run(
                [sys.executable, "-c", code, str(tmp_path / "plan")],
                capture_output=True,
                text=True,
                timeout=50,
            )
            assert done.returncode == 0, done.stderr
            here = [int(i) for b in plan.shard(1).iter_batches() for i in b["x"]]
            assert done.stdout.strip() == str(here)

    def test_a_plan_of_files_is_small(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"x": range(100_000)}), tmp_path / "a.parquet", row_group_size=1000)
        plan = lockstep.data.read_parquet(tmp_path).map(lambda row: row).prepare(2)
        assert len(cloudpickle.dumps(plan)) < 20_000

    def test_a_dataset_is_pickled_with_what_it_knows(self) -> None:
        dataset = blocks(10).random_shuffle(seed=1)
        again = pickle.loads(pickle.dumps(dataset))
        assert again.take_all() == dataset.take_all()


def test_a_large_row_group_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.data.plan.order.STREAMED_BYTES", 1000)
    monkeypatch.setattr("lockstep.data.sources.parquet.BLOCK_BYTES", 500)
    pq.write_table(pa.table({"x": range(1000), "y": range(1000)}), tmp_path / "a.parquet")
    dataset = lockstep.data.read_parquet(tmp_path).rename_columns({"x": "id"})
    assert dataset.num_blocks() == 1
    assert len(list(dataset.iter_batches(batch_size=None))) > 10
    assert [row["id"] for row in dataset.take_all()] == list(range(1000))
    plus = dataset.map(lambda row: {"id": row["id"] + 1})
    assert [row["id"] for row in plus.split(3)[1].take_all()] == list(range(334, 667))
    for order in ("local", "global"):
        plan = dataset.prepare(3, equal=False, order=order)
        parts = [
            [int(i) for b in plan.shard(rank).iter_batches(batch_size=30) for i in b["id"]]
            for rank in range(3)
        ]
        assert sorted(i for part in parts for i in part) == list(range(1000))
    for _ in dataset.iter_batches(batch_size=10, prefetch_batches=0):
        break  # the file is closed with the iteration
