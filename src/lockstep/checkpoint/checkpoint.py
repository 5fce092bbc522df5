"""Checkpoint: a directory on any filesystem, or a dict. ``retention`` decides which are kept."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import pickle
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint.pickled import number_at, numbers_in, only_tensors, pickle_dict
from lockstep.checkpoint.plain import decode_plain, encode_plain
from lockstep.errors import CheckpointError, StorageError
from lockstep.redact import redact
from lockstep.run_layout import (
    DICT_FILE,
    DICT_FILES,
    MANIFEST,
    METADATA_FILE,
    PICKLED_DICT_FILE,
    scratch_prefix,
)
from lockstep.state.files import StoredState
from lockstep.storage import Storage, open_storage

if TYPE_CHECKING:
    import pyarrow.fs
    from typing_extensions import Self

__all__ = ["PREPROCESSOR_KEY", "Checkpoint"]

_TAR_KEY = "fs_checkpoint"
_ID_KEY = "_current_checkpoint_id"
PREPROCESSOR_KEY = "_preprocessor"
"""The entry of the metadata that has a preprocessor, as text."""
_ADDED_KEYS = ("_timestamp", "_preprocessor", _ID_KEY)
_SUBCLASSES = {
    "LightGBMCheckpoint": "lockstep.train.lightgbm.checkpoint",
    "TensorflowCheckpoint": "lockstep.train.tensorflow.checkpoint",
    "TorchCheckpoint": "lockstep.train.torch.checkpoint",
    "XGBoostCheckpoint": "lockstep.train.xgboost.checkpoint",
}
"""The classes that a stored checkpoint may come back as. A file's word imports nothing else."""


class Checkpoint:
    """A directory on any filesystem, or a dict; each can be read as the other.

    A dict may be stored as a pickle. Reading that executes what is in it: see ``to_dict``.

    Creating one reads nothing: a missing directory is reported, with its path, at the first use.
    A checkpoint is pickled by path; a dict that is not stored yet, by value. Two are equal if they
    are the same directory, or dicts with the same bytes.

    Args:
        path: the directory, or a URI such as ``s3://bucket/prefix``.
        filesystem: the ``pyarrow.fs.FileSystem`` of ``path``.
        local_path, data_dict, uri: the older arguments; exactly one of the four is given.
    """

    _encoding_s = 0.0

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        filesystem: pyarrow.fs.FileSystem | None = None,
        *,
        local_path: str | os.PathLike[str] | None = None,
        data_dict: dict[str, Any] | None = None,
        uri: str | None = None,
    ) -> None:
        places = [place for place in (path, local_path, uri) if place is not None]
        if len(places) + (data_dict is not None) != 1:
            shown = redact(f"path={path!r}, local_path={local_path!r}, uri={uri!r}")
            raise ValueError(
                f"Checkpoint({shown}, "
                f"data_dict={'…' if data_dict is not None else None}): give exactly one of these."
            )
        self._storage: Storage | None = None
        self._files: dict[str, bytes] = {}
        self._numbers: dict[str, Any] = {}
        if data_dict is not None:
            began = time.perf_counter()
            self._load_from(data_dict)
            self._encoding_s = time.perf_counter() - began
        elif not isinstance(places[0], (str, os.PathLike)):
            raise TypeError(
                f"Checkpoint({places[0]!r}): expected a path; "
                "a dict goes through Checkpoint.from_dict."
            )
        elif filesystem is None and not os.fspath(places[0]):
            raise ValueError(
                f"Checkpoint({places[0]!r}): expected a path; '.' is the current directory."
            )
        else:
            self._storage = open_storage(places[0], filesystem)

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Self:
        """The directory ``path`` as a checkpoint; the directory stays the caller's."""
        return cls(path)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """A checkpoint of the dict as it is now, without later changes. Tensors move to the CPU.

        Plain Python values, numpy's and torch's, in dicts, lists, tuples and sets, are stored as
        data; a dict with anything else is pickled.

        Raises:
            TypeError: not a dict, or a value in it cannot be pickled.
            ValueError: it contains a tensor of which this worker has only a shard.
        """
        if not isinstance(data, dict):
            raise TypeError(f"Checkpoint.from_dict({data!r}): expected a dict.")
        return cls(data_dict=data)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        """The same checkpoint as this class: ``TorchCheckpoint`` has ``get_model``, say."""
        made = cls.__new__(cls)
        vars(made).update(vars(checkpoint), _encoding_s=0.0)
        return made

    @classmethod
    def at(cls, storage: Storage) -> Self:
        """The directory of a storage as a checkpoint."""
        checkpoint = cls.__new__(cls)
        checkpoint._storage, checkpoint._files, checkpoint._numbers = storage, {}, {}
        return checkpoint

    @classmethod
    def from_uri(cls, uri: str) -> Self:
        """The checkpoint at a URI such as ``s3://bucket/prefix`` or ``file:///directory``."""
        return cls(uri=uri)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The checkpoint that ``to_bytes`` has made into bytes.

        Raises:
            ValueError: these bytes are no checkpoint.
        """
        files = _untar(data)
        if files is None:
            raise ValueError("Checkpoint.from_bytes(…): these bytes are not from to_bytes().")
        return cls.from_dict({_TAR_KEY: data})

    def to_bytes(self) -> bytes:
        """All files of the checkpoint as one archive (tar), for ``from_bytes``."""
        return self._tar()

    def to_uri(self, uri: str) -> str:
        """Copy the checkpoint to a place such as ``s3://bucket/prefix``; returns ``uri``."""
        self.save_files(open_storage(uri), "", self.files())
        return uri

    @property
    def storage(self) -> Storage | None:
        """The storage of the directory; None for a dict that is not stored."""
        return self._storage

    @property
    def path(self) -> str | None:
        """The path of the directory on ``filesystem``; None for a dict that is not stored."""
        return None if self._storage is None else self._storage.root

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem | None:
        """The filesystem of ``path``; None for a dict that is not stored."""
        return None if self._storage is None else self._storage.filesystem

    @property
    def uri(self) -> str | None:
        """The URI it was opened from, or the path; None for a dict that is not stored."""
        return None if self._storage is None else self._storage.uri

    def get_internal_representation(self) -> tuple[str, Any]:
        """``("local_path", path)``, ``("uri", uri)`` or ``("data_dict", dict)``."""
        if self._storage is None:
            return "data_dict", self.to_dict()
        return ("local_path" if self._storage.is_local else "uri"), self._storage.uri

    def to_dict(self) -> dict[str, Any]:
        """A new copy of the dict; a directory is ``{"fs_checkpoint": <tar archive>}``.

        A dict that was reported gets three keys: ``_timestamp``, ``_preprocessor`` (None) and
        ``_current_checkpoint_id``. A dict of tensors only, such as a state dict, gets none:
        ``model.load_state_dict(checkpoint.to_dict())`` works.

        A dict of plain values, arrays and tensors is stored as such, and reading it executes
        nothing. Any other dict is stored as a pickle: call this only if you trust its origin.

        A ``train.State`` is its entries, as rank 0 gets them back, with complete tensors on the
        CPU. Reading it executes nothing.
        """
        if self.is_state:
            assert self._storage is not None
            return StoredState.read(self._storage).entries()
        if not self.is_dict:
            return {_TAR_KEY: self._tar()}
        data = self.given_dict()
        manifest = self._manifest()
        if manifest is not None and not only_tensors(data):
            # Removed first, so that these keys come last.
            for key in _ADDED_KEYS:
                data.pop(key, None)
            values = (manifest.get("timestamp"), None, manifest.get("id"))
            data.update(zip(_ADDED_KEYS, values, strict=True))
        return data

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the checkpoint to a local directory (default: a new one); returns its path."""
        self._directory()
        if path is not None:
            target = os.path.abspath(os.path.expanduser(os.fspath(path)))
            self._copy_to(target)
            return target
        target = tempfile.mkdtemp(prefix="checkpoint-")
        try:
            self._copy_to(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """The checkpoint as a local directory: its own, or a temporary copy."""
        if self._storage is not None and self._storage.is_local:
            self._directory()
            yield self._storage.root
            return
        temporary = tempfile.mkdtemp(prefix=scratch_prefix("checkpoint"))
        try:
            yield self.to_directory(temporary)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def get_metadata(self) -> dict[str, Any]:
        """The metadata that ``set_metadata`` stored; empty if there is none."""
        storage = self._directory()
        try:
            text = self._files[METADATA_FILE] if storage is None else storage.read(METADATA_FILE)
        except (FileNotFoundError, KeyError):
            return {}
        metadata: dict[str, Any] = json.loads(text)
        return metadata

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata, a dict of JSON values, kept beside the checkpoint's files."""
        try:
            text = json.dumps(dict(metadata)).encode()
        except (TypeError, ValueError) as error:
            raise TypeError(f"Metadata {metadata!r} does not fit in JSON: {error}.") from error
        storage = self._directory()
        if storage is None:
            self._files[METADATA_FILE] = text
        else:
            storage.write(METADATA_FILE, text)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add these entries to the metadata, replacing entries of the same name."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def get_preprocessor(self) -> Any:
        """The preprocessor of the trainer, or that of ``set_preprocessor``; None without one.

        One with functions or classes of the user is unpickled: call this only if you trust the
        checkpoint's origin.
        """
        text = self.get_metadata().get(PREPROCESSOR_KEY)
        if text is None:
            return self.given_dict().get("_preprocessor") if self.is_dict else None
        # By name: datasets are a layer above, and checkpoints are read without them.
        module = importlib.import_module("lockstep.data.preprocessor")
        return module.Preprocessor.deserialize(text)

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Keep a preprocessor with the checkpoint, as part of its metadata."""
        self.update_metadata({PREPROCESSOR_KEY: preprocessor.serialize()})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        if self._storage is None or other._storage is None:
            return self._storage is other._storage and self._content() == other._content()
        return self._storage == other._storage

    def __hash__(self) -> int:
        if self._storage is None:
            return hash(tuple(sorted(self._content().items())))
        return hash(self._storage)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        if self._storage is None:
            return f"{type(self).__name__}(in memory, {sum(map(len, self._files.values()))} bytes)"
        if self._storage.is_local:
            return f"{type(self).__name__}(filesystem=local, path={self._storage.root})"
        scheme, found, _ = self._storage.uri.partition("://")
        kind = scheme if found else self._storage.filesystem.type_name
        return f"{type(self).__name__}(filesystem={kind}, path={self._storage.root})"

    # The rest is for the library itself.

    @property
    def kind(self) -> str | None:
        """The name of lockstep's subclass that this one belongs to; None: it is plain."""
        for base in type(self).__mro__:
            if _SUBCLASSES.get(base.__name__) == base.__module__:
                return base.__name__
        return None

    def as_kind(self, kind: object) -> Checkpoint:
        """The same checkpoint as lockstep's subclass of this name; itself if there is none."""
        if not isinstance(kind, str) or kind not in _SUBCLASSES:
            return self
        made: Checkpoint = getattr(import_module(_SUBCLASSES[kind]), kind).from_checkpoint(self)
        return made

    def given_dict(self) -> dict[str, Any]:
        """A new copy of the dict of a dict checkpoint, without the keys that ``to_dict`` adds."""
        name = self._dict_file()
        assert name is not None
        chunks = self._chunks(name)
        try:
            if name == DICT_FILE:
                return decode_plain(chunks)
            data: Any = pickle.loads(b"".join(chunks))
        except (MemoryError, OSError, StorageError):
            raise  # the checkpoint is good, but this machine is too small or storage fails
        except Exception as error:  # damaged content may raise anything
            verb = "read" if name == DICT_FILE else "unpickled"
            raise CheckpointError(
                f"{self!r} cannot be {verb} here: {type(error).__name__}: {error}."
            ) from error
        if not isinstance(data, dict):
            raise CheckpointError(
                f"{self!r} has a {type(data).__name__} in its {name}; write a dict to it, or "
                "call the file something else."
            )
        return data

    @property
    def is_dict(self) -> bool:
        """Whether the checkpoint was created by ``from_dict``, stored or not."""
        return self._dict_file() is not None

    @property
    def is_state(self) -> bool:
        """Whether the checkpoint was reported as a ``train.State``."""
        storage = self._directory()
        return storage is not None and StoredState.is_in(storage)

    @property
    def current_id(self) -> int | None:
        """The ``_current_checkpoint_id`` of a dict checkpoint; None if there is none."""
        if self._storage is None:
            value = self._numbers.get(_ID_KEY)
            return None if value is None else int(value)
        if not self.is_dict:
            return None
        manifest = self._manifest()
        found = self.given_dict().get(_ID_KEY) if manifest is None else manifest.get("id")
        return None if found is None else int(found)

    def dict_value(self, key: str) -> float | None:
        """The number at ``key`` of the dict (``"a/b"`` reaches into nested dicts).

        A key with the literal name ``"a/b"`` has priority. None if there is no such key or its
        value is not a number, and for a stored dict that cannot be unpickled here.
        """
        if self._storage is None or not self.is_dict:
            return number_at(self._numbers, key)
        with contextlib.suppress(CheckpointError):
            return number_at(numbers_in(self.given_dict()), key)
        return None

    @property
    def is_movable(self) -> bool:
        """Whether a report may move the files: a local directory that no run has published.

        A user's copy of a published one has its manifest, with the name of the original.
        """
        if self._storage is None or not self._storage.is_local:
            return False
        try:
            manifest = self._manifest()
        except ValueError:  # an incomplete copy of a manifest
            return False
        own_name = os.path.basename(self._real_path())
        return manifest is None or manifest.get("name", own_name) != own_name

    def files(self) -> dict[str, int]:
        """The files that a report stores: name relative to the checkpoint → size in bytes.

        Raises:
            FileNotFoundError: the directory does not exist.
            NotADirectoryError: the path is a file.
        """
        storage = self._directory()
        if storage is None:
            return {name: len(data) for name, data in sorted(self._files.items())}
        sizes = storage.walk_files()
        sizes.pop(MANIFEST, None)  # publishing writes a new one
        return sizes

    def save_files(
        self,
        storage: Storage,
        directory: str,
        names: Iterable[str],
        *,
        move: bool = False,
        flush: bool = True,
    ) -> None:
        """Write these files of the checkpoint under ``directory`` of a storage.

        ``move`` moves the files of a local directory instead of copying them. Files that a link to
        a directory leads to are copied: they are not the checkpoint's.
        """
        source = self._directory()
        linked = functools.cache(self._is_linked)

        def save(name: str) -> None:
            target = f"{directory}/{name}" if directory else name
            if source is None:
                storage.put_bytes(target, self._files[name], flush=flush)
            elif source.is_local:
                own = move and not linked(os.path.dirname(source.path(name)))
                storage.put(target, source.path(name), move=own, flush=flush)
            else:
                storage.put_stream(target, source.read_chunks(name), flush=flush)

        if not directory:
            storage.make_directory()
        storage.each(names, save)
        if move and source is not None and source.is_local:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(source.path(MANIFEST))  # of the checkpoint this is a copy of

    def take_encoding_time(self) -> float:
        """How many seconds it took to make a dict a checkpoint, at the first call; then 0."""
        seconds, self._encoding_s = self._encoding_s, 0.0
        return seconds

    def fingerprint(self, names: Iterable[str]) -> dict[str, int]:
        """The CRC-32 of each of these files, to find out whether the files of two ranks differ."""
        sums = {}
        for name in names:
            total = 0
            for chunk in self._chunks(name):
                total = zlib.crc32(chunk, total)
            sums[name] = total
        return sums

    def _load_from(self, data: dict[str, Any]) -> None:
        archive = data.get(_TAR_KEY)
        if isinstance(archive, bytes) and not set(data) - {_TAR_KEY, *_ADDED_KEYS}:
            unpacked = _untar(archive)
            if unpacked is not None:
                self._files = unpacked
                return
        plain = encode_plain(data)
        if plain is None:
            self._files = {PICKLED_DICT_FILE: pickle_dict(dict(data))}
        else:
            self._files = {DICT_FILE: plain}
        self._numbers = numbers_in(data)

    def _content(self) -> dict[str, bytes]:
        return {name: data for name, data in self._files.items() if name != METADATA_FILE}

    def _chunks(self, name: str) -> Iterable[bytes]:
        return (self._files[name],) if self._storage is None else self._storage.read_chunks(name)

    def _dict_file(self) -> str | None:
        """The name of the file that has the dict; None if this is not a dict."""
        storage = self._directory()
        has = self._files.__contains__ if storage is None else storage.exists
        return next(filter(has, DICT_FILES), None)

    def _copy_to(self, target: str) -> None:
        if self._storage is None:
            self.save_files(open_storage(target), "", self._files, flush=False)
        elif self._storage.is_local and os.path.realpath(target) == self._real_path():
            return
        else:
            self._storage.get("", target)
        own = self._dict_file()
        for other in DICT_FILES:
            if own not in (None, other):  # of a dict that was there before
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(target, other))

    def _real_path(self) -> str:
        assert self._storage is not None
        return os.path.realpath(self._storage.root)

    def _is_linked(self, folder: str) -> bool:
        """Whether a link leads out of the checkpoint's directory to this folder below it."""
        real = self._real_path()
        return os.path.commonpath((os.path.realpath(folder), real)) != real

    def _manifest(self) -> dict[str, Any] | None:
        text = None if self._storage is None else self._storage.manifest()
        if text is None:
            return None
        manifest: dict[str, Any] = json.loads(text)
        return manifest

    def _tar(self) -> bytes:
        import tarfile

        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in self.files():
                data = b"".join(self._chunks(name))
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return archive.getvalue()

    def _directory(self) -> Storage | None:
        """The storage, known to be a directory; None for a dict that is not stored."""
        storage = self._storage
        if storage is None or storage.is_directory():
            return storage
        if storage.exists():
            raise NotADirectoryError(
                f"The checkpoint {storage.uri!r} is a file; give the directory that holds it."
            )
        raise FileNotFoundError(
            f"The checkpoint directory {storage.uri!r} does not exist; "
            "write the directory before it is used, and keep it until then."
        )


def _untar(archive: bytes) -> dict[str, bytes] | None:
    """The files of a tar archive; None if the bytes are not an archive."""
    import tarfile

    files = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                if member.isdir():
                    continue
                name = os.path.normpath(member.name).replace(os.sep, "/")
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or name.startswith("/") or name.split("/")[0] == "..":
                    raise ValueError(
                        f"The {_TAR_KEY!r} archive has the unsafe entry {member.name!r}; "
                        "only files below its own directory can be unpacked."
                    )
                files[name] = content.read()
    except tarfile.TarError:
        return None
    return files
