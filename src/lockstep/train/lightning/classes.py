"""lockstep's additions to Lightning's classes, for either of Lightning's two packages."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import tempfile
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointUploadMode
from lockstep.run_layout import SNAPSHOT_PREFIX
from lockstep.train import api
from lockstep.train.torch.save_file import TorchFile
from lockstep.train.worker.session import current

__all__ = ["WorkerEnvironment", "WorkerStrategy", "make_classes"]


class WorkerEnvironment:
    """The part of a Lightning cluster environment that has this worker's ranks.

    Lightning's own would count devices to get the world size, and unset ``WORLD_SIZE`` at the end.
    """

    creates_processes_externally = True

    def world_size(self) -> int:
        """The number of workers."""
        return api.world_size()

    def set_world_size(self, size: int) -> None:
        """Ignore it: the run decides."""

    def global_rank(self) -> int:
        """This worker's rank among all workers."""
        return api.world_rank()

    def set_global_rank(self, rank: int) -> None:
        """Ignore it: the run decides."""

    def local_rank(self) -> int:
        """This worker's rank among the workers of its machine."""
        return api.local_rank()

    def node_rank(self) -> int:
        """The rank of this worker's machine."""
        session = current()
        return 0 if session is None else session.context.node_rank

    def teardown(self) -> None:
        """Leave the worker's variables unchanged."""


_SET_BY_THE_RUN = ("process_group_backend", "timeout", "start_method")


class WorkerStrategy:
    """The part of a Lightning strategy that adapts it to workers with one device each."""

    parallel_devices: Any
    _make_environment: Any
    _environment: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        unused = {name: options.pop(name) for name in _SET_BY_THE_RUN if name in options}
        if unused:
            given = ", ".join(f"{name}={value!r}" for name, value in unused.items())
            warnings.warn(
                f"{type(self).__name__}({given}) changes nothing, because the run has started "
                "the workers and their process group; give TorchConfig(backend=…, timeout_s=…) to "
                "the TorchTrainer.",
                stacklevel=2,
            )
        super().__init__(*args, **options)

    @property
    def cluster_environment(self) -> Any:
        """lockstep's environment, whichever Lightning has found; None before that."""
        return self._environment

    @cluster_environment.setter
    def cluster_environment(self, found: Any) -> None:
        if found is not None and not isinstance(found, WorkerEnvironment):
            found = self._make_environment()
        self._environment = found

    @property
    def root_device(self) -> Any:
        """This worker's device among the devices that Lightning has found."""
        device = self.parallel_devices[0]
        if device.type != "cuda":
            return device
        import torch

        return torch.device("cuda", torch.cuda.current_device())

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The arguments that select this worker's share of the data."""
        return {"num_replicas": api.world_size(), "rank": api.world_rank()}

    def setup_environment(self) -> None:
        """Use the run's process group.

        Raises:
            RuntimeError: there are several workers, but no process group.
        """
        import torch.distributed as dist

        if api.world_size() > 1 and not dist.is_initialized():
            raise RuntimeError(
                f"{type(self).__name__}: the {api.world_size()} workers of this run have no "
                "torch.distributed process group; run the training function with a TorchTrainer."
            )
        super().setup_environment()  # type: ignore[misc]  # the strategy's, beside this mix-in


class _Reporter:
    """The part of the report callback that does not depend on the package."""

    CHECKPOINT_NAME = "checkpoint.ckpt"

    _mode = CheckpointUploadMode.SYNC

    def __init__(
        self, checkpoint_upload_mode: CheckpointUploadMode | None = None, **options: Any
    ) -> None:
        super().__init__(**options)  # options of other base classes of a user's subclass
        if checkpoint_upload_mode is None:
            return
        if checkpoint_upload_mode not in (CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC):
            raise ValueError(
                f"LockstepReportCallback(checkpoint_upload_mode={checkpoint_upload_mode!r}): "
                "expected CheckpointUploadMode.SYNC or ASYNC; the callback itself writes the "
                "checkpoint, so it always has to be uploaded."
            )
        self._mode = checkpoint_upload_mode

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the epoch's metrics and a checkpoint."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        metrics["epoch"] = trainer.current_epoch
        metrics["step"] = trainer.global_step
        saved = self._save(trainer)
        if isinstance(saved, TorchFile):
            api.report(metrics, checkpoint=saved)
            return
        api.report(
            metrics,
            checkpoint=saved,
            checkpoint_upload_mode=self._mode,
            delete_local_checkpoint_after_upload=True,
        )

    def _save(self, trainer: Any) -> Checkpoint | TorchFile | None:
        rank = api.world_rank()
        if trainer.world_size == 1 and rank != 0:
            return None  # each rank trains alone: the run keeps rank 0's checkpoint
        # All ranks save to the same path: each writes its part of a sharded checkpoint.
        directory = trainer.strategy.broadcast(_new_directory() if rank == 0 else None)
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, self.CHECKPOINT_NAME)
        with _kept_content(trainer, self._mode is CheckpointUploadMode.ASYNC) as content:
            trainer.save_checkpoint(path, weights_only=False)
        if content:
            _remove_empty(directory)
            return TorchFile(self.CHECKPOINT_NAME, content[0])
        if api.local_rank() != 0:
            return None
        # On another node than rank 0's there may be nothing, and no directory any more.
        if rank == 0 or not _remove_empty(directory):
            return Checkpoint.from_directory(directory)
        return None


def _remove_empty(directory: str) -> bool:
    """Remove a directory unless there is something in it; whether it is gone."""
    with contextlib.suppress(OSError):
        os.rmdir(directory)
    return not os.path.isdir(directory)


@contextlib.contextmanager
def _kept_content(trainer: Any, wanted: bool) -> Iterator[list[Any]]:
    """Meanwhile keep what Lightning would write with ``torch.save``, instead of writing it.

    A strategy that writes in another way, in parts, and a user's own plugin do that all the same.
    """
    content: list[Any] = []
    plugin = trainer.strategy.checkpoint_io
    if not wanted or type(plugin).__name__ != "TorchCheckpointIO":
        yield content
        return

    def keep(checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        content.append(checkpoint)

    plugin.save_checkpoint = keep
    try:
        yield content
    finally:
        del plugin.save_checkpoint


def _new_directory() -> str:
    # Beside the checkpoints if possible, so that it is moved there instead of copied.
    parent = api.get_trial_dir()
    return tempfile.mkdtemp(
        prefix=f"{SNAPSHOT_PREFIX}lightning-", dir=parent if os.path.isdir(parent) else None
    )


def make_classes(pl: ModuleType, module: str) -> dict[str, type]:
    """Return the classes as subclasses of ``pl``'s, by name, as members of ``module``."""
    environments: Any = importlib.import_module(f"{pl.__name__}.plugins.environments")

    class LockstepLightningEnvironment(
        WorkerEnvironment,
        environments.LightningEnvironment,  # type: ignore[misc]  # untyped
    ):
        """Gives Lightning this worker's ranks; lockstep has started the workers."""

    class LockstepDDPStrategy(
        WorkerStrategy,
        pl.strategies.DDPStrategy,  # type: ignore[misc, name-defined]  # untyped
    ):
        """Data-parallel training over the run's process group; arguments as ``DDPStrategy``."""

        _make_environment = LockstepLightningEnvironment

    class LockstepFSDPStrategy(
        WorkerStrategy,
        pl.strategies.FSDPStrategy,  # type: ignore[misc, name-defined]  # untyped
    ):
        """Sharded training over the run's process group; arguments as ``FSDPStrategy``."""

        _make_environment = LockstepLightningEnvironment

    class LockstepDeepSpeedStrategy(
        WorkerStrategy,
        pl.strategies.DeepSpeedStrategy,  # type: ignore[misc, name-defined]  # untyped
    ):
        """Training with DeepSpeed over the run's process group; arguments as ``DeepSpeedStrategy``.

        Needs ``pip install deepspeed``, and CUDA GPUs: Lightning's strategy runs on nothing else.
        """

        _make_environment = LockstepLightningEnvironment

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if importlib.util.find_spec("deepspeed") is None:
                raise ImportError(
                    "LockstepDeepSpeedStrategy needs DeepSpeed, which is not installed: "
                    "pip install deepspeed. It trains on CUDA GPUs only.",
                    name="deepspeed",
                )
            super().__init__(*args, **kwargs)

    class LockstepReportCallback(_Reporter, pl.Callback):  # type: ignore[misc, name-defined]  # untyped
        """Reports at the end of each training epoch.

        The metrics are ``trainer.callback_metrics`` as floats, with ``epoch`` and ``step``; the
        checkpoint is a directory with Lightning's own file, ``checkpoint.ckpt``.

        Args:
            checkpoint_upload_mode: when training continues: by default after the upload, with
                ``ASYNC`` when the content of the file is copied in memory, as a ``train.State``.
        """

    made: dict[str, type] = {}
    for cls in (
        LockstepDDPStrategy,
        LockstepDeepSpeedStrategy,
        LockstepFSDPStrategy,
        LockstepLightningEnvironment,
        LockstepReportCallback,
    ):
        cls.__module__ = module
        cls.__qualname__ = cls.__name__
        made[cls.__name__] = cls
    return made
