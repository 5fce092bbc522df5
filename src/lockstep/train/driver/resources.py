"""What each rank uses, sampled every few seconds: memory, CPU and GPUs. For the dashboard.

The engine's process that watches the workers takes the samples (``engine/usage.py``): the driver,
and on a cluster the agent of each node. The driver appends a line for each machine to the run's
``resources.jsonl``::

    {"time": 1769860000.0, "attempt": 1, "host": "node-a",
     "ranks": [0, 1],                those of this machine whose process is there
     "cpu": [12.3, 11.9],            seconds of CPU since the process started, a rank each
     "memory": [812646400, 9437184], bytes in memory
     "gpu": [[97, 61203283968, 85899345920]]}    of this machine's: percent busy, bytes used, bytes;
                                                 null: the GPU does not say

Neither a worker nor the journal is involved.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from lockstep.engine.base import Sampled
from lockstep.run_layout import RESOURCES_FILE
from lockstep.storage.local import open_private

__all__ = ["FIRST_S", "append_sample", "sample_interval"]

_INTERVAL_S = 5.0
FIRST_S = 1.0
"""How long to wait for the first one; also while the workers start."""
_MOST = 8640
"""About how many samples a run of any length has: of one over half a day, they are fewer."""


def sample_interval(elapsed_s: float) -> float:
    """How long to wait for the next sample, after so much time of the run."""
    return max(_INTERVAL_S, elapsed_s / _MOST)


def append_sample(directory: str, attempt: int, sampled: Sampled, now: float) -> None:
    """Append one sample to the run's file. Where that fails, there is no sample."""
    if not sampled.ranks:
        return
    sample: dict[str, Any] = {
        "time": round(now, 3),
        "attempt": attempt,
        "host": sampled.hostname,
        "ranks": sampled.ranks,
        "cpu": sampled.cpu,
        "memory": sampled.memory,
    }
    if sampled.gpus:
        sample["gpu"] = sampled.gpus
    path = os.path.join(directory, RESOURCES_FILE)
    line = (json.dumps(sample, separators=(",", ":")) + "\n").encode()
    with suppress(OSError), open(path, "ab", buffering=0, opener=open_private) as file:
        file.write(line)
