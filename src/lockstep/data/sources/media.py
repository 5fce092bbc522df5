"""Files of other libraries' formats: ORC, Avro, audio and video. A block is a file."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import to_arrow
from lockstep.data.arrow.formats import from_rows
from lockstep.data.arrow.tensors import as_ragged
from lockstep.data.sources.base import Block
from lockstep.data.sources.lines import read_file
from lockstep.data.sources.paths import File, open_input, unreadable
from lockstep.data.sources.records import RecordSource

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AudioSource", "AvroSource", "OrcSource", "VideoSource", "library_for"]


def library_for(reader: str, module: str, package: str) -> Any:
    """The library that a reader needs.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{reader}() needs {package}, which is not installed: pip install {package}"
        ) from error


class OrcSource(RecordSource):
    """The rows of ORC files; their footers have the columns and the numbers of rows."""

    reader = "read_orc"

    def _find_blocks(self) -> list[Block]:
        counts = self._each_file(_orc_rows)
        return [
            Block((number,), rows, file.size, file.path)
            for number, (file, rows) in enumerate(zip(self._files, counts, strict=True))
        ]

    def _find_schema(self) -> pa.Schema:
        import pyarrow as pa
        from pyarrow import orc

        file = self._files[0]
        try:
            with open_input(file) as source:
                return orc.ORCFile(source).schema.remove_metadata()
        except (pa.ArrowException, OSError) as error:
            raise unreadable(file, error) from error

    def _table(self, file: File) -> pa.Table:
        import pyarrow as pa
        from pyarrow import orc

        try:
            with open_input(file) as source:
                return orc.ORCFile(source).read()
        except (pa.ArrowException, OSError) as error:
            raise unreadable(file, error) from error


def _orc_rows(file: File) -> int:
    import pyarrow as pa
    from pyarrow import orc

    try:
        with open_input(file) as source:
            return int(orc.ORCFile(source).nrows)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error


class AvroSource(RecordSource):
    """The records of Avro files, with the library fastavro."""

    reader = "read_avro"

    def _table(self, file: File) -> pa.Table:
        avro = library_for(self.reader, "fastavro", "fastavro")
        try:
            rows = list(avro.reader(io.BytesIO(read_file(file))))
        except (ValueError, EOFError, IndexError, KeyError) as error:
            raise unreadable(file, error) from error
        return from_rows(rows, None, f"read_avro of {file.path!r}")


class AudioSource(RecordSource):
    """A row a file, with the library soundfile: ``"amplitude"`` (channels × samples), and its rate.

    All lengths are of one type, so that files of different lengths are one column.
    """

    reader = "read_audio"

    def _table(self, file: File) -> pa.Table:
        import pyarrow as pa

        soundfile = library_for(self.reader, "soundfile", "soundfile")
        try:
            samples, rate = soundfile.read(
                io.BytesIO(read_file(file)), always_2d=True, dtype="float32"
            )
        except (RuntimeError, ValueError) as error:
            raise unreadable(file, error) from error
        amplitude = as_ragged(to_arrow(samples.T[None]), pa.float32())
        return pa.table({"amplitude": amplitude, "sample_rate": pa.array([int(rate)])})


class VideoSource(RecordSource):
    """A row a frame, with the library PyAV: ``"frame"`` (height × width × 3), ``"frame_index"``.

    Args:
        files: in order.
        timestamps: add ``"frame_timestamp"``: when the frame begins and ends, in seconds.
        fps: how many frames a second to keep, about; None keeps all.
        size: (height, width) to scale each frame to, or None.
    """

    reader = "read_videos"

    def __init__(
        self,
        files: Sequence[File],
        timestamps: bool = False,
        fps: int | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(files)
        self._timestamps, self._fps, self._size = timestamps, fps, size

    def _table(self, file: File) -> pa.Table:
        import pyarrow as pa

        av = library_for(self.reader, "av", "av")
        frames, places, times = [], [], []
        try:
            with av.open(io.BytesIO(read_file(file))) as container:
                stream = container.streams.video[0]
                rate = float(stream.average_rate or 0)
                stride = max(1, round(rate / self._fps)) if self._fps and rate else 1
                for place, frame in enumerate(container.decode(stream)):
                    if place % stride:
                        continue
                    scaled = {}
                    if self._size is not None:
                        scaled = {"height": self._size[0], "width": self._size[1]}
                    frames.append(frame.to_ndarray(format="rgb24", **scaled))
                    places.append(place)
                    start = float(frame.time or 0.0)
                    times.append([start, start + (1 / rate if rate else 0.0)])
        except (av.error.FFmpegError, IndexError) as error:
            raise unreadable(file, error) from error
        columns = {"frame": to_arrow(frames), "frame_index": pa.array(places, pa.int64())}
        if self._timestamps:
            columns["frame_timestamp"] = pa.array(times, pa.list_(pa.float64(), 2))
        return pa.table(columns)
