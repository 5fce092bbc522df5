"""TensorflowCheckpoint: a checkpoint of a Keras model or its weights."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint import Checkpoint
from lockstep.errors import CheckpointError
from lockstep.run_layout import scratch_prefix

if TYPE_CHECKING:
    from lockstep.data.preprocessor import Preprocessor

__all__ = ["MODEL_FILE", "TensorflowCheckpoint"]

MODEL_FILE = "model.keras"
"""The file that contains the model."""

_NAME_KEY = "_model_filename"
_SAVED_MODEL = "saved_model.pb"
_WEIGHTS = ("model_weights", "model")


class TensorflowCheckpoint(Checkpoint):
    """A checkpoint with a complete Keras model, or a dict with weights at ``"model_weights"``."""

    @classmethod
    def from_model(
        cls, model: Any, *, preprocessor: Preprocessor | None = None
    ) -> TensorflowCheckpoint:
        """Return a checkpoint of the complete Keras model, with its optimizer.

        ``get_preprocessor()`` returns the ``preprocessor``.
        """
        if not callable(getattr(model, "save", None)):
            raise TypeError(f"TensorflowCheckpoint.from_model({model!r}): expected a Keras model.")
        with tempfile.TemporaryDirectory(prefix=scratch_prefix("model")) as directory:
            model.save(os.path.join(directory, MODEL_FILE))
            return cls._of_files(_read_files(directory), MODEL_FILE, preprocessor)

    @classmethod
    def from_h5(
        cls, file_path: str | os.PathLike[str], *, preprocessor: Preprocessor | None = None
    ) -> TensorflowCheckpoint:
        """Return a checkpoint of a model from ``model.save("….h5")``."""
        path = Path(file_path)
        if path.suffix != ".h5" or not path.is_file():
            raise ValueError(
                f"TensorflowCheckpoint.from_h5({str(path)!r}): expected the path of an .h5 file."
            )
        return cls._of_files({path.name: path.read_bytes()}, path.name, preprocessor)

    @classmethod
    def from_saved_model(
        cls, dir_path: str | os.PathLike[str], *, preprocessor: Preprocessor | None = None
    ) -> TensorflowCheckpoint:
        """Return a checkpoint of a model that was saved as a SavedModel directory."""
        if not Path(dir_path, _SAVED_MODEL).is_file():
            raise ValueError(
                f"TensorflowCheckpoint.from_saved_model({os.fspath(dir_path)!r}): expected a "
                f"directory with {_SAVED_MODEL}."
            )
        return cls._of_files(_read_files(dir_path), ".", preprocessor)

    def get_model(self, model: Any = None) -> Any:
        """Load the model with the version of Keras that saved it.

        Loading it can execute code that the checkpoint has: load only what you trust.

        Args:
            model: if the checkpoint has only weights, the model to load them into, or a function
                that creates it.

        Raises:
            ValueError: the checkpoint has only weights, and no ``model`` is given.
            CheckpointError: the checkpoint has no model.
        """
        if self.is_dict:
            return self._with_weights(model)
        name = self._model_name()
        if name is None:
            raise CheckpointError(
                f"{self!r} has no Keras model; create it with TensorflowCheckpoint.from_model."
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
                f"{self!r} has only weights; give the model to load them into: get_model(model)."
            )
        if callable(model) and not hasattr(model, "set_weights"):
            model = model()
        model.set_weights(data[key])
        return model

    def _model_name(self) -> str | None:
        """The model's file, relative to the checkpoint; ``"."`` if the model is the directory."""
        files = self.files()
        recorded = self.get_metadata().get(_NAME_KEY)
        if recorded in files:
            return str(recorded)
        if _SAVED_MODEL in files:
            return "."
        return next((name for name in files if name.endswith((".keras", ".h5"))), None)

    @classmethod
    def _of_files(
        cls, files: dict[str, bytes], model_name: str, preprocessor: Preprocessor | None
    ) -> TensorflowCheckpoint:
        made = cls.__new__(cls)
        vars(made).update(_storage=None, _files=files, _numbers={})
        made.set_metadata({_NAME_KEY: model_name})
        if preprocessor is not None:
            made.set_preprocessor(preprocessor)
        return made


def _read_files(directory: str | os.PathLike[str]) -> dict[str, bytes]:
    paths = (path for path in sorted(Path(directory).rglob("*")) if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def _keras_for(path: str) -> Any:
    """Return the version of Keras that can read the model: 2 or 3."""
    if _major_version(path) >= 3:
        import keras

        return keras
    try:
        import tf_keras
    except ImportError as error:
        raise ImportError(
            f"{os.path.basename(path)!r} was saved with Keras 2; to load it install "
            "pip install 'lockstep-train[tensorflow]'"
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
