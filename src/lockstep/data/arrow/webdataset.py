"""WebDataset's tar files: the files of one sample have the same name and different endings."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["decoded", "encoded", "read_samples", "write_samples"]

_TEXT = ("txt", "text", "transcript")
_INTEGERS = ("cls", "cls2", "index", "inx", "id", "count")
_IMAGES = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "bmp", "tif", "tiff", "webp", "gif")


def read_samples(data: bytes) -> Iterator[dict[str, Any]]:
    """The samples of a tar file: ``"__key__"``, and each ending with its bytes."""
    sample: dict[str, Any] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            # A sparse member of a few bytes may claim to be as long as it likes.
            whole = member.isfile() and not member.issparse()
            file = archive.extractfile(member) if whole else None
            directory, slash, name = member.name.rpartition("/")
            base, dot, ending = name.partition(".")
            if file is None or not dot or not base:
                continue
            key = directory + slash + base
            if sample.get("__key__", key) != key:
                yield sample
                sample = {}
            sample["__key__"] = key
            sample[ending] = file.read()
    if sample:
        yield sample


def decoded(ending: str, value: bytes) -> Any:
    """A file's content by its ending: text, numbers, JSON, arrays and images; others stay bytes.

    Pickles and PyTorch's files stay bytes, because reading them executes them.
    """
    kind = ending.rpartition(".")[2].lower()
    if kind in _TEXT:
        return value.decode()
    if kind in _INTEGERS:
        return int(value)
    if kind in ("json", "jsn"):
        return json.loads(value)
    if kind in ("npy", "npz"):
        import numpy as np

        found = np.load(io.BytesIO(value), allow_pickle=False)
        return found if kind == "npy" else {name: found[name] for name in found.files}
    if kind in _IMAGES:
        import numpy as np
        from PIL import Image

        with Image.open(io.BytesIO(value)) as image:
            return np.asarray(image)
    return value


def encoded(ending: str, value: Any) -> bytes:
    """The inverse of ``decoded``.

    Raises:
        TypeError: the ending does not say how to write such a value.
    """
    kind = ending.rpartition(".")[2].lower()
    if isinstance(value, bytes):
        return value
    if kind in ("json", "jsn"):
        return json.dumps(value).encode()
    if isinstance(value, str):
        return value.encode()
    if kind in (*_TEXT, *_INTEGERS):
        return str(value).encode()
    if kind in _IMAGES or kind == "npy":
        import numpy as np

        buffer = io.BytesIO()
        if kind == "npy":
            np.save(buffer, np.asarray(value), allow_pickle=False)
        else:
            from PIL import Image

            name = {"jpg": "jpeg", "tif": "tiff"}.get(kind, kind)
            Image.fromarray(np.asarray(value, dtype=np.uint8)).save(buffer, format=name)
        return buffer.getvalue()
    raise TypeError(
        f"write_webdataset(): column {ending!r} has a {type(value).__name__}; give bytes or text, "
        "or name the column by how it is written: 'json', 'npy', 'cls', 'png', …."
    )


def write_samples(
    path: str,
    rows: Iterator[Mapping[str, Any]],
    encode: Callable[[str, Any], bytes],
) -> None:
    """Write rows as a tar file."""
    with tarfile.open(path, "w") as archive:
        for number, row in enumerate(rows):
            key = row.get("__key__") or f"{number:08d}"
            for ending, value in row.items():
                if ending == "__key__" or value is None:
                    continue
                content = encode(ending, value)
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
