"""HorovodConfig: how Horovod is set up between workers, and whether it can be."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lockstep.checks import is_number
from lockstep.train.backend import Backend, BackendConfig
from lockstep.train.horovod.backend import HorovodBackend

__all__ = ["HorovodConfig", "check_installed"]

_LEVELS = ("error", "warning", "info", "debug", "trace")
_LAUNCHERS = ("key", "ssh_port", "ssh_identity_file", "ssh_str", "placement_group_timeout_s")


@dataclass(frozen=True)
class HorovodConfig(BackendConfig):
    """How Horovod is set up.

    Args:
        nics: names of the network interfaces that workers may use, in order of preference; by
            default loopback if all workers are on this machine.
        verbose: what Horovod logs: 0 errors, 1 warnings, 2 information, 3 and 4 details.
        timeout_s: how long workers wait for each other in ``hvd.init()``, and later for a worker
            that no longer answers. A worker that is only late to an operation has no limit.
        key, ssh_port, ssh_identity_file, ssh_str, placement_group_timeout_s: for Horovod's own
            launchers. lockstep starts the workers itself, so each of these is an error.
    """

    nics: Iterable[str] | None = None
    verbose: int = 1
    key: str | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    ssh_str: str | None = None
    timeout_s: float = 300
    placement_group_timeout_s: float | None = None

    def __post_init__(self) -> None:
        nics = self.nics
        if nics is not None:
            names = None if isinstance(nics, str) else list(nics)
            if not names or not all(isinstance(name, str) and name for name in names):
                raise ValueError(
                    f"HorovodConfig(nics={nics!r}): expected names of network interfaces, "
                    "such as ['eth0']."
                )
            object.__setattr__(self, "nics", tuple(names))
        if isinstance(self.verbose, bool) or self.verbose not in range(len(_LEVELS)):
            raise ValueError(
                f"HorovodConfig(verbose={self.verbose!r}): expected a number from 0 (errors) to "
                f"{len(_LEVELS) - 1} (everything)."
            )
        seconds = self.timeout_s
        if not (is_number(seconds) and 0 < seconds < math.inf):
            raise ValueError(
                f"HorovodConfig(timeout_s={seconds!r}): expected seconds, finite and above 0."
            )
        for name in _LAUNCHERS:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"HorovodConfig({name}=…) is for launchers that reach their workers over SSH "
                    "or in a placement group; lockstep starts its own, so leave it out."
                )

    def make_backend(self) -> Backend:
        """Return the backend to send to the workers."""
        check_installed("HorovodTrainer")
        # The first optimizer of a process imports torch._dynamo, which takes seconds.
        torch = ("torch", "torch._dynamo", "horovod.torch") if _has_torch() else ()
        preload = (*torch, "horovod.runner.http.http_server", "lockstep.train.horovod")
        seconds = math.ceil(self.timeout_s)
        return HorovodBackend(preload, tuple(self.nics or ()), _LEVELS[self.verbose], seconds)


def check_installed(needed_by: str) -> None:
    """Raise ImportError if Horovod is not installed."""
    if not _places():
        raise ImportError(
            f"{needed_by} needs Horovod, the extra 'lockstep-train[horovod]'; its release does not "
            "build against current PyTorch, so install it with lockstep's "
            "scripts/install_horovod.py (see docs/how-to/horovod.md)."
        )


def _places() -> list[str]:
    """Return where Horovod is installed, without importing it."""
    spec = importlib.util.find_spec("horovod")
    return [] if spec is None else list(spec.submodule_search_locations or ())


def _has_torch() -> bool:
    """Whether Horovod was built for PyTorch, and not for TensorFlow only."""
    return any(found for place in _places() for found in Path(place, "torch").glob("mpi_lib_v2*"))
