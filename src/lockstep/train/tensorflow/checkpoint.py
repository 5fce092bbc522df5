"""TensorflowCheckpoint: a checkpoint that holds a Keras model or its weights."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.checkpoint import Checkpoint
from lockstep.errors import CheckpointError

__all__ = ["MODEL_FILE", "TensorflowCheckpoint"]

MODEL_FILE = "model.keras"
"""The file a model is kept in."""

_NAME_KEY = "_model_filename"
_SAVED_MODEL = "saved_model.pb"
_WEIGHTS = ("model_weights", "model")


class TensorflowCheckpoint(Checkpoint):
    """A checkpoint with a whole Keras model, or a dict with its weights at ``"model_weights"``."""

    @classmethod
    def from_model(cls, model: Any) -> TensorflowCheckpoint:
        """A checkpoint of the whole Keras model, its optimizer included, as it is now."""
        if not callable(getattr(model, "save", None)):
            raise TypeError(f"TensorflowCheckpoint.from_model({model!r}): expected a Keras model.")
        with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:
            model.save(os.path.join(directory, MODEL_FILE))
            return cls._of_files(directory, MODEL_FILE)

    @classmethod
    def from_h5(cls, file_path: str | os.PathLike[str]) -> TensorflowCheckpoint:
        """A checkpoint of a model that ``model.save("….h5")`` wrote."""
        path = Path(file_path)
        if path.suffix != ".h5" or not path.is_file():
            raise ValueError(
                f"TensorflowCheckpoint.from_h5({str(path)!r}): expected the path of an .h5 file."
            )
        made = cls._empty()
        made._files[path.name] = path.read_bytes()
        made.set_metadata({_NAME_KEY: path.name})
        return made

    @classmethod
    def from_saved_model(cls, dir_path: str | os.PathLike[str]) -> TensorflowCheckpoint:
        """A checkpoint of a model that was saved as a SavedModel directory."""
        if not Path(dir_path, _SAVED_MODEL).is_file():
            raise ValueError(
                f"TensorflowCheckpoint.from_saved_model({os.fspath(dir_path)!r}): expected a "
                f"directory with {_SAVED_MODEL}."
            )
        return cls._of_files(dir_path, ".")

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> TensorflowCheckpoint:
        """The same checkpoint, such as ``result.checkpoint``, with ``get_model``."""
        made = cls.__new__(cls)
        vars(made).update(vars(checkpoint))
        return made

    def get_model(self, model: Any = None) -> Any:
        """The Keras model, loaded with the Keras it was saved with.

        Args:
            model: where only weights were kept: the model to load them into, or a function that
                makes it.

        Raises:
            ValueError: there are only weights, and no ``model`` to load them into.
            CheckpointError: there is no model in this checkpoint.
        """
        if self.is_dict:
            return self._with_weights(model)
        name = self._model_name()
        if name is None:
            raise CheckpointError(
                f"{self!r} holds no Keras model; make it with TensorflowCheckpoint.from_model."
            )
        with self.as_directory() as directory:
            path = os.path.normpath(os.path.join(directory, name))
            return _keras_for(path).models.load_model(path)

    def _with_weights(self, model: Any) -> Any:
        data = self.to_dict()
        key = next((key for key in _WEIGHTS if key in data), None)
        if key is None:
            raise CheckpointError(
                f"{self!r} is a dict without {_WEIGHTS[0]!r}; put model.get_weights() there."
            )
        if model is None:
            raise ValueError(
                f"{self!r} holds weights; give the model to load them into: get_model(model)."
            )
        if isinstance(model, Callable) and not hasattr(model, "set_weights"):  # type: ignore[arg-type]
            model = model()
        model.set_weights(data[key])
        return model

    def _model_name(self) -> str | None:
        """The model's file, relative to the checkpoint; ``"."`` where it is all of it."""
        files = self.files()
        told = self.get_metadata().get(_NAME_KEY)
        if told in files:
            return str(told)
        if _SAVED_MODEL in files:
            return "."
        return next((name for name in files if name.endswith((".keras", ".h5"))), None)

    @classmethod
    def _empty(cls) -> TensorflowCheckpoint:
        made = cls.__new__(cls)
        vars(made).update(_storage=None, _files={}, _numbers={})
        return made

    @classmethod
    def _of_files(cls, directory: str | os.PathLike[str], name: str) -> TensorflowCheckpoint:
        made = cls._empty()
        for path in sorted(Path(directory).rglob("*")):
            if path.is_file():
                made._files[path.relative_to(directory).as_posix()] = path.read_bytes()
        made.set_metadata({_NAME_KEY: name})
        return made


def _keras_for(path: str) -> Any:
    """The Keras that can read the model: 2 and 3 do not read each other's."""
    if _major_version(path) >= 3:
        import keras

        return keras
    try:
        import tf_keras
    except ImportError as error:
        raise ImportError(
            f"{os.path.basename(path)!r} was saved with Keras 2; to load it install "
            "pip install 'lockstep[tensorflow]'"
        ) from error
    return tf_keras


def _major_version(path: str) -> int:
    version = "2"  # a SavedModel, which Keras 3 does not load
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive:
            version = json.loads(archive.read("metadata.json"))["keras_version"]
    elif path.endswith(".h5"):
        import h5py

        with h5py.File(path) as file:
            version = file.attrs.get("keras_version", "2")
    return int(str(version).partition(".")[0])
