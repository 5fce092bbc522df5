"""Lightning: strategies that use the run's process group, and a callback that reports.

The classes are subclasses of the package in use: the package that is already imported
(``lightning.pytorch`` if both are), or else the one that is installed. Naming a class imports it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from lockstep.missing import raise_missing_name
from lockstep.train.lightning.prepare import prepare_trainer

__all__ = [
    "LockstepDDPStrategy",
    "LockstepDeepSpeedStrategy",
    "LockstepFSDPStrategy",
    "LockstepLightningEnvironment",
    "LockstepReportCallback",
    "RayDDPStrategy",
    "RayDeepSpeedStrategy",
    "RayFSDPStrategy",
    "RayLightningEnvironment",
    "RayTrainReportCallback",
    "prepare_trainer",
]

# Package → the module with its classes. Pickled classes name that module, so that a worker uses
# the same package as the driver, whatever the worker has imported by then.
_HOMES = {
    "lightning.pytorch": "lockstep.train.lightning.on_lightning",
    "pytorch_lightning": "lockstep.train.lightning.on_pytorch_lightning",
}
_OTHER_NAMES = {
    "RayDDPStrategy": "LockstepDDPStrategy",
    "RayDeepSpeedStrategy": "LockstepDeepSpeedStrategy",
    "RayFSDPStrategy": "LockstepFSDPStrategy",
    "RayLightningEnvironment": "LockstepLightningEnvironment",
    "RayTrainReportCallback": "LockstepReportCallback",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise_missing_name(__name__, name)
    home = importlib.import_module(_HOMES[_package(name)])
    return getattr(home, _OTHER_NAMES.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _package(needed_by: str) -> str:
    for package in _HOMES:
        if package in sys.modules:
            return package
    for package in _HOMES:
        if importlib.util.find_spec(package.partition(".")[0]) is not None:
            return package
    raise ImportError(
        f"{needed_by} needs Lightning; install it: pip install 'lockstep-train[lightning]'"
    )
