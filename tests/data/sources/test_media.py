"""Readers of other formats: ORC, and those whose library may not be installed."""

from __future__ import annotations

import importlib.util
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import orc

import lockstep.data
from lockstep.errors import StorageError


def test_orc_is_read_as_written(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"n": n, "s": f"row {n}", "a": np.arange(2) + n} for n in range(7)
    ]
    lockstep.data.from_items(rows).write_orc(tmp_path, num_rows_per_file=3)
    dataset = lockstep.data.read_orc(tmp_path)
    assert dataset.count() == 7
    assert dataset.num_blocks() == 3
    assert dataset.schema().names == ["n", "s", "a"]
    found = dataset.take_all()
    assert [row["s"] for row in found] == [row["s"] for row in rows]
    assert [list(row["a"]) for row in found] == [list(row["a"]) for row in rows]
    chosen = lockstep.data.read_orc(tmp_path, columns=["n"], include_paths=True)
    assert chosen.schema().names == ["n", "path"]
    assert chosen.sum("n") == 21


def test_orc_files_that_do_not_fit(tmp_path: Path) -> None:
    orc.write_table(pa.table({"x": [1]}), tmp_path / "a.orc")
    orc.write_table(pa.table({"y": [1]}), tmp_path / "b.orc")
    with pytest.raises(ValueError, match=r"b.orc' has a column 'y', which .*a.orc' does not"):
        lockstep.data.read_orc(tmp_path).take_all()
    (tmp_path / "a.orc").write_bytes(b"no file of this format")
    with pytest.raises(StorageError, match=r"a\.orc"):
        lockstep.data.read_orc(tmp_path).count()


@pytest.mark.parametrize(
    ("reader", "module"),
    [("read_avro", "fastavro"), ("read_audio", "soundfile"), ("read_videos", "av")],
)
def test_a_library_that_is_not_installed(reader: str, module: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(ImportError, match=rf"{reader}\(\) needs {module}.*pip install {module}"):
        getattr(lockstep.data, reader)(tmp_path)


def test_avro(tmp_path: Path) -> None:
    avro = pytest.importorskip("fastavro")
    schema: dict[str, Any] = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "n", "type": "int"}, {"name": "s", "type": "string"}],
    }
    rows = [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]
    with (tmp_path / "rows.avro").open("wb") as file:
        avro.writer(file, schema, rows)
    assert lockstep.data.read_avro(tmp_path).take_all() == rows


def test_audio(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    for name, samples in (("a", 100), ("b", 50)):
        data = io.BytesIO()
        with wave.open(data, "wb") as file:
            file.setnchannels(2)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(np.zeros(samples * 2, "<i2").tobytes())
        (tmp_path / f"{name}.wav").write_bytes(data.getvalue())
    found = lockstep.data.read_audio(tmp_path).take_all()
    assert [row["amplitude"].shape for row in found] == [(2, 100), (2, 50)]
    assert {row["sample_rate"] for row in found} == {8000}


def test_video(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "film.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        for place in range(10):
            image = np.full((32, 64, 3), place * 20, np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    rows = lockstep.data.read_videos(tmp_path, include_timestamps=True).take_all()
    assert [row["frame_index"] for row in rows] == list(range(10))
    assert rows[0]["frame"].shape == (32, 64, 3)
    assert rows[1]["frame_timestamp"].tolist() == pytest.approx([0.1, 0.2])
    fewer = lockstep.data.read_videos(tmp_path, fps=5, resize=(16, 16)).take_all()
    assert [row["frame_index"] for row in fewer] == [0, 2, 4, 6, 8]
    assert fewer[0]["frame"].shape == (16, 16, 3)


def test_the_arguments_of_videos_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"read_videos\(fps=0\)"):
        lockstep.data.read_videos(tmp_path, fps=0)
    with pytest.raises(ValueError, match=r"read_videos\(resize=\(0, 2\)\)"):
        lockstep.data.read_videos(tmp_path, resize=(0, 2))


def test_a_hash_of_each_row(tmp_path: Path) -> None:
    lockstep.data.range(100).write_parquet(tmp_path / "a", row_group_size=10)
    first = lockstep.data.read_parquet(tmp_path / "a", include_row_hash=True)
    assert first.schema().names == ["id", "row_hash"]
    rows = first.take_all()
    assert len({row["row_hash"] for row in rows}) == 100
    # The same numbers in each pass, in any order, and with any columns.
    assert {r["id"]: r["row_hash"] for r in first.random_shuffle().take_all()} == {
        r["id"]: r["row_hash"] for r in rows
    }
    only = lockstep.data.read_parquet(tmp_path / "a", columns=["id"], include_row_hash=True)
    assert only.take_all() == rows
    alone = first.select_columns(["row_hash"])
    assert [r["row_hash"] for r in alone.take_all()] == [r["row_hash"] for r in rows]
    first.write_parquet(tmp_path / "b")
    again = lockstep.data.read_parquet(tmp_path / "b", include_row_hash=True, include_paths=True)
    assert again.schema().names == ["id", "row_hash", "path"]
    assert {r["row_hash"] for r in again.take_all()}.isdisjoint(r["row_hash"] for r in rows)
