"""The names of the files and directories of a run and of an experiment. The only such place.

    <storage>/<experiment>/
        experiment.jsonl  tuner.pkl  callbacks/     of a search; see ``tune/experiment``
        <trainer>_<trial id>_<tag>_<date>/          a run
            journal.jsonl                           all events of the run, one JSON object a line
            trainer.pkl                             the function and the configs, for a restore
            objects/<sha256>                        large arrays of trainer.pkl; links between runs
            checkpoint_000000/                      exists once .lockstep_checkpoint.json is in it
                train_state/rank_0.json             what train.State keeps: structure and values
                train_state/rank_0.safetensors      its tensors
            .staging/  .trash/                      not published yet; about to be deleted
            return_value.bin                        what rank 0 returned, if it is plain data
            progress.csv  result.json  params.json
            error.txt                               the tracebacks of its failures
            environment.json                        versions, git commit, command line, hardware
            resources.jsonl                         memory and CPU of each rank, every few seconds
            undelivered_<tracker>_<number>.jsonl    rows that a tracker did not get
            logs/rank_0.log …                       the output of each rank
            .journal.jsonl.lock                     while a driver is at work

The names of temporary directories on this machine are here, too.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterable

__all__ = [
    "callback_state_file",
    "checkpoint_name",
    "date_name",
    "entry_of",
    "error_file",
    "experiment_file",
    "experiment_number",
    "is_numbered",
    "is_undelivered",
    "lock_path",
    "log_file",
    "newest_directories",
    "run_directory",
    "run_title",
    "scratch_owner",
    "scratch_prefix",
    "snapshot_prefix",
    "spool_prefix",
    "state_data",
    "state_index",
    "state_rank",
    "undelivered_file",
]

FORMAT_VERSION = 1
"""The version in the first record of a journal; readers refuse a newer one."""

JOURNAL_FILE = "journal.jsonl"
TRAINER_FILE = "trainer.pkl"
PROGRESS_FILE = "progress.csv"
RESULT_FILE = "result.json"
ERROR_FILE = "error.txt"
"""Every failure of a run, with the tracebacks."""
PARAMS_FILE = "params.json"
RETURN_FILE = "return_value.bin"
"""What rank 0's function returned, in the form of ``checkpoint_plain``."""
ENVIRONMENT_FILE = "environment.json"
RESOURCES_FILE = "resources.jsonl"
"""Samples of what each rank uses, one JSON object a line: see ``train/driver/resources``."""
LOG_DIRECTORY = "logs"
VALIDATION_LOG = f"{LOG_DIRECTORY}/validation.log"
"""What validations of checkpoints print."""
OBJECT_DIRECTORY = "objects"
TRACE_DIRECTORY = "pytorch_profiler"

MANIFEST = ".lockstep_checkpoint.json"
"""The file in a checkpoint's directory that marks the checkpoint as complete."""
METADATA_FILE = ".metadata.json"
"""The metadata of ``Checkpoint.set_metadata``."""
DICT_FILE = "dict_checkpoint.bin"
"""The dict of ``Checkpoint.from_dict``, if it is plain: see ``checkpoint_plain``."""
PICKLED_DICT_FILE = "dict_checkpoint.pkl"
"""Any other dict of ``Checkpoint.from_dict``."""
DICT_FILES = (DICT_FILE, PICKLED_DICT_FILE)
STATE_DIRECTORY = "train_state"
"""The part of a checkpoint that ``train.State`` writes, two files a rank."""
STAGING_DIRECTORY = ".staging"
TRASH_DIRECTORY = ".trash"
TEMPORARY = ".lockstep-tmp-"
"""The prefix of a file that will be renamed when it is complete. Never listed."""

SNAPSHOT_PREFIX = ".snapshot-"
"""The prefix of directories with the files that a worker must still upload."""
SPOOL_PREFIX = "lockstep-run-"
"""The prefix of local directories of runs whose storage is remote."""
EXPERIMENT_SPOOL_PREFIX = "lockstep-experiment-"
"""The prefix of local directories of experiments whose storage is remote."""

COPIED_FILE = ".copied"
"""In a spool: how many bytes of its journal are on storage."""
KEPT_FILE = ".kept"
"""In a spool that could not be copied to storage. An error has named its path to the user."""

OWN_NAMES = frozenset(
    (
        ENVIRONMENT_FILE,
        ERROR_FILE,
        JOURNAL_FILE,
        LOG_DIRECTORY,
        OBJECT_DIRECTORY,
        PARAMS_FILE,
        PROGRESS_FILE,
        RESOURCES_FILE,
        RESULT_FILE,
        RETURN_FILE,
        TRAINER_FILE,
    )
)
"""Names that no checkpoint may have."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d$")
_SCRATCH = re.compile(r"lockstep-[a-z]+-([0-9a-f]{8})-(\d{1,9})-")
_EXPERIMENT_JOURNAL = re.compile(r"experiment(?:_(\d+))?\.jsonl")
_MADE_NAME = re.compile(r".*_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_\d+)?")
"""An experiment's name that was not the user's: ``TorchTrainer_2026-01-31_12-00-00``."""
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


def run_title(experiment: str, run: str) -> str:
    """``digits TorchTrainer_3f2a1_00000``: the user's name first, where there is one."""
    return run if _MADE_NAME.fullmatch(experiment) else f"{experiment} {run}".strip()


def newest_directories(names: Iterable[str]) -> list[str]:
    """Those of runs' directories, by ``run_directory``, that were created in the last second."""
    dated = [(match[0], name) for name in names if (match := _DATE.search(name))]
    last = max(dated)[0] if dated else None
    return [name for date, name in dated if date == last]


def checkpoint_name(checkpoint_id: int) -> str:
    """``checkpoint_000003``."""
    return f"checkpoint_{checkpoint_id:06d}"


def is_numbered(name: str) -> bool:
    """Whether it is a name of ``checkpoint_name``."""
    return re.fullmatch(r"checkpoint_\d{6,}", name) is not None


def entry_of(location: str) -> str | None:
    """The entry of the run's directory with a checkpoint that was not uploaded; None if outside."""
    return location.split("/")[1] if location.startswith("./") else None


def state_index(rank: int) -> str:
    """The structure and the plain values of a rank's ``train.State``, in a checkpoint."""
    return f"{STATE_DIRECTORY}/rank_{rank}.json"


def state_data(rank: int) -> str:
    """The tensors that a rank has written of a ``train.State``, in a checkpoint."""
    return f"{STATE_DIRECTORY}/rank_{rank}.safetensors"


def state_rank(name: str) -> int | None:
    """The rank of a file of ``state_index``, without its directory; None: it is another file."""
    match = re.fullmatch(r"rank_(\d{1,9})\.json", name)
    return int(match[1]) if match else None


def error_file(directory: str) -> str | None:
    """The file with the failures of the run in this directory; None if there is none."""
    path = os.path.join(directory, ERROR_FILE)
    return path if os.path.isfile(path) else None


def log_file(rank: int) -> str:
    """The log of a rank, relative to the run's directory."""
    return f"{LOG_DIRECTORY}/rank_{rank}.log"


def callback_state_file(callback: str, number: int) -> str:
    """The file with the state of the ``number``-th callback of a class."""
    return f"callback_{callback}_{number}.pkl"


def lock_path(journal: str) -> str:
    """The lock beside a journal, there while a process writes the journal."""
    folder, name = os.path.split(journal)
    return os.path.join(folder, f".{name}.lock")


def undelivered_file(tracker: str, number: int) -> str:
    """The file with the rows that a tracker did not get."""
    return f"undelivered_{tracker}_{number:08x}.jsonl"


def is_undelivered(name: str) -> bool:
    """Whether it is a name of ``undelivered_file``."""
    return re.fullmatch(r"undelivered_\w+_[0-9a-f]{8}\.jsonl", name) is not None


def snapshot_prefix(trial_id: str, root: str) -> str:
    """The prefix of the snapshots of the run at ``root``.

    It depends on ``root``, because a copy of a run has the same trial id.
    """
    return f"{SNAPSHOT_PREFIX}{trial_id}-{zlib.crc32(root.encode()):08x}-"


def spool_prefix(kind: str = SPOOL_PREFIX) -> str:
    """The prefix of this machine's spools.

    Machines may share a temporary directory, and cannot see whether each other's drivers run.
    """
    return f"{kind}{_machine()}-"


def scratch_prefix(kind: str) -> str:
    """The prefix of a directory that this process makes for a while, and deletes itself."""
    return f"lockstep-{kind}-{_processes()}-{os.getpid()}-"


def scratch_owner(name: str) -> int | None:
    """The process that made a directory with a ``scratch_prefix``; None if it cannot be seen."""
    match = _SCRATCH.match(name)
    return int(match[2]) if match and match[1] == _processes() else None


def _machine() -> str:
    return f"{zlib.crc32(os.uname().nodename.encode()):08x}"


def _processes() -> str:
    """The same in processes that can see each other's ids.

    Containers of a pod share their host's name and perhaps a temporary directory, but not these.
    """
    try:
        seen = os.readlink("/proc/self/ns/pid")
    except OSError:  # a system without such namespaces
        return _machine()
    return f"{zlib.crc32(f'{os.uname().nodename} {seen}'.encode()):08x}"


def experiment_file(kind: str, number: int) -> str:
    """The ``"journal"``, ``"tuner"`` or ``"callbacks"`` of the n-th experiment of a directory."""
    return _EXPERIMENT_FILES[kind].format("" if number == 1 else f"_{number}")


def experiment_number(name: str) -> int | None:
    """The number of the experiment whose journal the file is; None if it is not a journal."""
    match = _EXPERIMENT_JOURNAL.fullmatch(name)
    return int(match[1] or 1) if match else None
