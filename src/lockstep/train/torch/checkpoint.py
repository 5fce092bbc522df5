"""TorchCheckpoint: a checkpoint of a model or its state dict."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint import Checkpoint
from lockstep.errors import CheckpointError
from lockstep.train.torch.model import unwrap_model

if TYPE_CHECKING:
    import torch

    from lockstep.data.preprocessor import Preprocessor

__all__ = ["TorchCheckpoint"]

_KEY = "model"
_FILE = "model.pt"
_PREFIX = "module."


class TorchCheckpoint(Checkpoint):
    """A dict checkpoint with the model, or its state dict, at ``"model"``.

    Also reads a directory with a ``model.pt`` from ``torch.save``, and a ``train.State`` with an
    entry ``model``. Tensors are stored as CPU
    tensors, without the wrapper and prefix of ``DistributedDataParallel``.
    """

    @classmethod
    def from_model(
        cls, model: torch.nn.Module, *, preprocessor: Preprocessor | None = None
    ) -> TorchCheckpoint:
        """Return a checkpoint of the complete model; its class must be importable where it is read.

        ``get_preprocessor()`` returns the ``preprocessor``.

        Raises:
            ValueError: this worker has only a shard of the model.
        """
        import torch

        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"TorchCheckpoint.from_model({model!r}): expected a torch.nn.Module.")
        model = unwrap_model(model)
        fsdp = sys.modules.get("torch.distributed.fsdp")
        for name, part in model.named_modules():
            if fsdp is not None and isinstance(part, fsdp.FullyShardedDataParallel):
                raise _shard_error("from_model", name or type(model).__name__)
        _refuse_shards("from_model", dict(model.named_parameters()))
        return _with(cls(data_dict={_KEY: model}), preprocessor)

    @classmethod
    def from_state_dict(
        cls, state_dict: Mapping[str, Any], *, preprocessor: Preprocessor | None = None
    ) -> TorchCheckpoint:
        """Return a checkpoint of a state dict from ``model.state_dict()``, as ``from_model``.

        Raises:
            ValueError: this worker has only a shard of the model.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"TorchCheckpoint.from_state_dict({state_dict!r}): expected a state dict."
            )
        _refuse_shards("from_state_dict", state_dict)
        return _with(cls(data_dict={_KEY: _without_prefix(state_dict)}), preprocessor)

    def get_model(self, model: torch.nn.Module | None = None) -> torch.nn.Module:
        """Return the model. A state dict is loaded into ``model``, in place.

        Loading it can execute code that the checkpoint has: load only what you trust.

        Raises:
            ValueError: the checkpoint has only a state dict, and no ``model`` is given.
            CheckpointError: the checkpoint has no model.
        """
        import torch

        saved = self._saved()
        if isinstance(saved, torch.nn.Module):
            if model is not None:
                warnings.warn(
                    "get_model(model=…): the checkpoint has a complete model, which is returned; "
                    "the given model is not used.",
                    stacklevel=2,
                )
            return saved
        if model is None:
            raise ValueError(
                f"{self!r} has only a state dict; give the model to load it into: get_model(model)."
            )
        unwrap_model(model).load_state_dict(_without_prefix(saved))
        return model

    def _saved(self) -> Any:
        import torch

        if self.is_dict or self.is_state:
            data = self.to_dict()
            if _KEY in data:
                return data[_KEY]
        elif _FILE in self.files():
            with self.as_directory() as directory:
                return torch.load(Path(directory, _FILE), map_location="cpu", weights_only=False)
        raise CheckpointError(
            f"{self!r} has neither a dict with {_KEY!r} nor a file {_FILE!r}; create it with "
            "TorchCheckpoint.from_model or from_state_dict."
        )


def _without_prefix(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    if state_dict and all(name.startswith(_PREFIX) for name in state_dict):
        return {name[len(_PREFIX) :]: value for name, value in state_dict.items()}
    return dict(state_dict)


def _refuse_shards(maker: str, state_dict: Mapping[str, Any]) -> None:
    """Refuse shards: only one rank's dict is kept, so the other ranks' shards would be lost."""
    for name, value in state_dict.items():
        # A DTensor or a ShardedTensor: where their modules are depends on torch's version.
        if hasattr(value, "full_tensor") or hasattr(value, "local_shards"):
            raise _shard_error(maker, name)


def _shard_error(maker: str, name: str) -> ValueError:
    return ValueError(
        f"TorchCheckpoint.{maker}: this worker has only a shard of {name!r}; save it with "
        "torch.distributed.checkpoint, or gather it first: get_model_state_dict(model, "
        "options=StateDictOptions(full_state_dict=True))."
    )


def _with(checkpoint: TorchCheckpoint, preprocessor: Preprocessor | None) -> TorchCheckpoint:
    if preprocessor is not None:
        checkpoint.set_preprocessor(preprocessor)
    return checkpoint
