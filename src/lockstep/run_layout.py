"""What the files and directories of a run, and of an experiment, are called. The only such place.

    <storage>/<experiment>/
        experiment.jsonl  tuner.pkl  callbacks/     of a search; see ``tune/experiment``
        <trainer>_<trial id>_<tag>_<date>/          a run
            journal.jsonl                           everything that happened, one JSON object a line
            trainer.pkl                             the function and the configs, to restore it with
            checkpoint_000000/                      exists once .lockstep_checkpoint.json is in it
            .staging/  .trash/                      not published yet; not part of the run any more
            progress.csv  result.json  params.json
            logs/rank_0.log …                       what each rank printed

Temporary directories of this machine have names from here, too.
"""

from __future__ import annotations

import os
import re
import time
import zlib

__all__ = [
    "callback_state_file",
    "checkpoint_name",
    "date_name",
    "entry_of",
    "experiment_file",
    "experiment_number",
    "is_numbered",
    "log_file",
    "run_directory",
    "snapshot_prefix",
    "spool_prefix",
]

FORMAT_VERSION = 1
"""What the first record of a journal says; a reader refuses a newer one."""

JOURNAL_FILE = "journal.jsonl"
TRAINER_FILE = "trainer.pkl"
PROGRESS_FILE = "progress.csv"
RESULT_FILE = "result.json"
PARAMS_FILE = "params.json"
LOG_DIRECTORY = "logs"
TRACE_DIRECTORY = "pytorch_profiler"

MANIFEST = ".lockstep_checkpoint.json"
"""The file in a checkpoint's directory that says it is whole."""
METADATA_FILE = ".metadata.json"
"""What ``Checkpoint.set_metadata`` was given."""
DICT_FILE = "dict_checkpoint.pkl"
"""What ``Checkpoint.from_dict`` was given."""
STAGING_DIRECTORY = ".staging"
TRASH_DIRECTORY = ".trash"
TEMPORARY = ".lockstep-tmp-"
"""How the name of a file begins that is about to be renamed; such a file is never listed."""

SNAPSHOT_PREFIX = ".snapshot-"
"""Directories that hold what a worker has still to upload."""
SPOOL_PREFIX = "lockstep-run-"
"""Local directories of runs whose storage is remote."""
EXPERIMENT_SPOOL_PREFIX = "lockstep-experiment-"
"""Local directories of experiments whose storage is remote."""

OWN_NAMES = frozenset(
    (JOURNAL_FILE, LOG_DIRECTORY, PARAMS_FILE, PROGRESS_FILE, RESULT_FILE, TRAINER_FILE)
)
"""What no checkpoint may be called."""

_EXPERIMENT_JOURNAL = re.compile(r"experiment(?:_(\d+))?\.jsonl")
_EXPERIMENT_FILES = {
    "journal": "experiment{}.jsonl",
    "tuner": "tuner{}.pkl",
    "callbacks": "callbacks{}",
}


def date_name(when: float | None = None) -> str:
    """``2026-01-31_12-00-00``, in local time; None: now."""
    return time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(when))


def run_directory(trainer: str, trial_id: str, tag: str, began: float | None = None) -> str:
    """``TorchTrainer_3f2a1_00000_0_2026-01-31_12-00-00``; ``began``: None is now."""
    return f"{trainer}_{trial_id}_{tag}_{date_name(began)}"


def checkpoint_name(checkpoint_id: int) -> str:
    """``checkpoint_000003``."""
    return f"checkpoint_{checkpoint_id:06d}"


def is_numbered(name: str) -> bool:
    """Whether it is one of ``checkpoint_name``'s."""
    return re.fullmatch(r"checkpoint_\d{6,}", name) is not None


def entry_of(location: str) -> str | None:
    """The entry of the run's directory that a checkpoint which is not uploaded lies in, if any."""
    return location.split("/")[1] if location.startswith("./") else None


def log_file(rank: int) -> str:
    """A rank's log, relative to the run's directory."""
    return f"{LOG_DIRECTORY}/rank_{rank}.log"


def callback_state_file(callback: str, number: int) -> str:
    """Where the state of the ``number``-th callback of a class is kept."""
    return f"callback_{callback}_{number}.pkl"


def snapshot_prefix(trial_id: str, root: str) -> str:
    """How the snapshots of the run at ``root`` begin; a copy of a run has the same trial id."""
    return f"{SNAPSHOT_PREFIX}{trial_id}-{zlib.crc32(root.encode()):08x}-"


def spool_prefix() -> str:
    """How the spools of this machine begin: another machine's drivers cannot be seen from here."""
    return f"{SPOOL_PREFIX}{zlib.crc32(os.uname().nodename.encode()):08x}-"


def experiment_file(kind: str, number: int) -> str:
    """The ``"journal"``, ``"tuner"`` or ``"callbacks"`` of the n-th experiment of a directory."""
    return _EXPERIMENT_FILES[kind].format("" if number == 1 else f"_{number}")


def experiment_number(name: str) -> int | None:
    """Which experiment's journal a file is; None where it is none."""
    match = _EXPERIMENT_JOURNAL.fullmatch(name)
    return int(match[1] or 1) if match else None
