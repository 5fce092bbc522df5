"""Datasets in training: what a trainer is given becomes shards, and their positions come back.

driver                                       worker
given ─▶ plan_datasets ─▶ plans ───────────▶ Shards.get(name) ─▶ DataShard
merge_positions ◀──────── Report.data ◀───── Shards.stand()
     │  kept with the checkpoint
     └─────────────────── Launch.positions ▶ Shards
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from lockstep.errors import StorageError
from lockstep.train.function.serialize import dump
from lockstep.train.protocol import Report
from lockstep.train.streams import (
    ConfiguredPlan,
    RayDataset,
    StreamPlan,
    is_ray_dataset,
    known_rows,
    with_options,
)

if TYPE_CHECKING:
    from lockstep.data import DataConfig, Dataset, DatasetConfig, ShardPlan
    from lockstep.data.preprocessor import Preprocessor
    from lockstep.data.sources.shared_tables import SharedTables

    Sharing = DataConfig | Mapping[str, DatasetConfig] | None

__all__ = [
    "PRELOADED",
    "check_dataset_config",
    "check_datasets",
    "check_positions",
    "check_preprocessor",
    "merge_positions",
    "plan_datasets",
    "preprocessed",
]


PRELOADED = (
    "lockstep.data",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.json",
    "pyarrow.parquet",
)
"""What workers of a run with datasets have imported when they start."""


def check_datasets(given: Mapping[str, Any] | None) -> dict[str, Dataset | Callable[[], Any]]:
    """What a trainer was given as ``datasets``, as lockstep datasets; functions stay as they are.

    Raises:
        TypeError: it is not a dict of names, or one of them is no dataset.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError(
            f"datasets={given!r}: expected a dict of names to datasets, such as "
            "{'train': lockstep.data.read_parquet('data/')}."
        )
    return {name: _as_dataset(name, value) for name, value in given.items()}


def _as_dataset(name: str, value: Any, *, functions: bool = True) -> Any:
    """A lockstep dataset of whatever kind this is; a function is left for later."""
    from lockstep import data

    if isinstance(value, data.Dataset | RayDataset):
        return value
    if is_ray_dataset(value):
        return RayDataset(value) if functions else RayDataset(value)()
    try:
        found = _converted(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"datasets[{name!r}]: {error}") from error
    if found is not None:
        return found
    if functions and callable(value) and not isinstance(value, type):
        return value
    raise TypeError(
        f"datasets[{name!r}] is a {type(value).__module__}.{type(value).__qualname__}, which is no "
        "dataset; give a lockstep.data Dataset, a Ray Data, Hugging Face or torch map-style one, "
        "a pandas frame, an Arrow table, or a function that returns one."
    )


def _converted(value: Any) -> Dataset | None:
    """A dataset of what another library has; None where it is not one."""
    from lockstep import data

    if _is(value, "datasets", "Dataset", "IterableDataset", "DatasetDict", "IterableDatasetDict"):
        return data.from_huggingface(value)
    if _is(value, "pandas", "DataFrame"):
        return data.from_pandas(value)
    if _is(value, "pyarrow", "Table", "RecordBatch") or hasattr(value, "__arrow_c_stream__"):
        return data.from_arrow(value)
    if hasattr(value, "__getitem__") and hasattr(value, "__len__") and not _is_plain(value):
        return data.from_torch(value)
    return None


def _is(value: Any, library: str, *classes: str) -> bool:
    """Whether it is of one of these classes of a library, which then has been imported.

    A module of the user's own may have the library's name, but hardly its classes.
    """
    module = sys.modules.get(library)
    kinds = [getattr(module, name, None) for name in classes]
    return isinstance(value, tuple(kind for kind in kinds if isinstance(kind, type)))


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, bytes, Mapping, list, tuple))


def check_dataset_config(given: Sharing, datasets: Mapping[str, Any]) -> Sharing:
    """What a trainer was given as ``dataset_config``.

    Raises:
        TypeError: it is neither a ``DataConfig`` nor a dict of ``DatasetConfig``.
        ValueError: it names or requires a dataset that there is not.
    """
    if given is None:
        return None
    from lockstep.data import DataConfig, DatasetConfig

    there = ", ".join(map(repr, datasets)) or "none"
    if isinstance(given, DataConfig):
        split = () if given.datasets_to_split == "all" else given.datasets_to_split
        for name in split:
            if name not in datasets:
                raise ValueError(
                    f"DataConfig(datasets_to_split={list(split)!r}): {name!r} is not one of the "
                    f"trainer's datasets, which are {there}; name one of them."
                )
        return given
    if isinstance(given, Mapping) and all(isinstance(v, DatasetConfig) for v in given.values()):
        for name, config in given.items():
            if name not in (*datasets, "*") and config.required is not False:
                raise ValueError(
                    f"dataset_config[{name!r}]: the trainer's datasets are {there}; give it one "
                    f"named {name!r}, or say required=False."
                )
        return given
    raise TypeError(
        f"dataset_config={given!r}: expected a DataConfig, or a dict of names to DatasetConfig."
    )


def check_preprocessor(given: Any) -> Preprocessor | None:
    """What a trainer was given as ``preprocessor``.

    Raises:
        TypeError: it is no preprocessor.
    """
    if given is None:
        return None
    from lockstep.data.preprocessor import Preprocessor

    if not isinstance(given, Preprocessor):
        raise TypeError(f"preprocessor={given!r}: give one of lockstep.data.preprocessors.")
    return given


def preprocessed(
    preprocessor: Preprocessor | None,
    datasets: Mapping[str, Dataset | Callable[[], Any]],
    sharing: Sharing,
) -> Mapping[str, Dataset | Callable[[], Any]]:
    """The datasets transformed by a preprocessor, which is fitted first where it has to be.

    Raises:
        ValueError: it is not fitted, and there is no dataset to fit it on.
    """
    if preprocessor is None:
        return datasets
    from lockstep.data import Dataset, DatasetConfig
    from lockstep.data.preprocessor import FitStatus

    made = {
        name: given if isinstance(given, Dataset) else _as_dataset(name, given(), functions=False)
        for name, given in datasets.items()
    }
    configs = sharing if isinstance(sharing, Mapping) else {}
    if preprocessor.fit_status() in (FitStatus.NOT_FITTED, FitStatus.PARTIALLY_FITTED):
        chosen = [name for name, config in configs.items() if config.fit and name in made]
        name = (chosen or ["train"])[0]
        if name not in made:
            raise ValueError(
                f"preprocessor={preprocessor!r} is not fitted, and there is no dataset 'train' to "
                "fit it on; give datasets={'train': …}, or call its fit(dataset) before."
            )
        preprocessor.fit(made[name])
    return {
        name: dataset
        if configs.get(name, DatasetConfig()).transform is False
        else preprocessor.transform(dataset)
        for name, dataset in made.items()
    }


def plan_datasets(
    datasets: Mapping[str, Dataset | Callable[[], Any]],
    sharing: Sharing,
    size: int,
    function: Callable[..., Any],
    *,
    shared: bool,
) -> tuple[dict[str, bytes], SharedTables | None, dict[str, StreamPlan | ConfiguredPlan]]:
    """Each dataset's plan for up to ``size`` workers, pickled; what can be known is checked.

    Functions in it are sent as ``function`` is, the training function. With ``shared`` tables in
    memory are mapped by the workers, for as long as the second result is there. Without, datasets
    of Ray Data are streamed: the third result says how, and their plans are empty. So it is with
    all datasets where the user divides them, by a ``DataConfig.configure()`` of a subclass.

    Raises:
        ValueError: a dataset has no rows, or too few; names it.
        OSError, ValueError: a file cannot be read or does not fit; names it.
        TypeError: a function in it cannot be sent to workers.
    """
    if not datasets:
        return {}, None, {}
    from lockstep.data import DataConfig, Dataset
    from lockstep.data.sources.shared_tables import SharedTables

    plans = {}
    streams: dict[str, StreamPlan | ConfiguredPlan] = {}
    tables = SharedTables()
    if isinstance(sharing, DataConfig) and type(sharing).configure is not DataConfig.configure:
        made = {
            name: _for_configure(name, given, sharing, shared) for name, given in datasets.items()
        }
        configured = ConfiguredPlan(sharing, made, function, tables if shared else None)
        return dict.fromkeys(made, b""), tables, dict.fromkeys(made, configured)
    for name, given in datasets.items():
        if isinstance(given, RayDataset) and not shared:
            plans[name], streams[name] = b"", _stream_plan(name, given.dataset, sharing, size)
            continue
        if not isinstance(given, Dataset):
            given = _as_dataset(name, given(), functions=False)
        plan, split = _plan(name, given, sharing, size)
        with tables.active() if shared else nullcontext():
            plans[name] = dump((plan, split), f"datasets[{name!r}]", by_value=True, like=function)
    return plans, tables, streams


def _for_configure(name: str, given: Any, sharing: DataConfig, shared: bool) -> Dataset:
    from lockstep.data import Dataset

    if isinstance(given, RayDataset) and not shared:
        raise TypeError(
            f"{type(sharing).__qualname__}.configure(): datasets[{name!r}] is of Ray Data, which a "
            "cluster streams; leave configure() out, or read the files with lockstep.data."
        )
    made: Dataset = (
        given if isinstance(given, Dataset) else _as_dataset(name, given(), functions=False)
    )
    return made


def _shared_out(name: str, dataset: Any, sharing: Sharing) -> tuple[Any, bool, DataConfig]:
    """A dataset in the order that ``sharing`` asks for, whether it is split, and the config."""
    from lockstep.data import DataConfig, DatasetConfig

    if isinstance(sharing, Mapping):
        old = sharing.get(name) or sharing.get("*") or DatasetConfig()
        if old.global_shuffle:
            dataset = dataset.random_shuffle()
        elif old.randomize_block_order:
            dataset = dataset.randomize_block_order()
        return dataset, old.split is not False, DataConfig()
    config = sharing or DataConfig()
    return dataset, config.splits(name), config


def _stream_plan(name: str, dataset: Any, sharing: Sharing, size: int) -> StreamPlan:
    dataset, split, config = _shared_out(name, dataset, sharing)
    if config.order == "global":
        raise ValueError(
            f"DataConfig(order='global'): datasets[{name!r}] is of Ray Data, which divides its "
            "rows itself; leave order out, or read the files with lockstep.data."
        )
    if config.seed is not None:
        raise ValueError(
            f"DataConfig(seed={config.seed}): datasets[{name!r}] is of Ray Data, which shuffles "
            f"its rows itself; leave seed out, and call its random_shuffle(seed={config.seed})."
        )
    options = config.execution_options
    if isinstance(options, Mapping):
        options = options.get(name)
    if options is not None:
        dataset = with_options(dataset, options)
    title, rows = f"datasets[{name!r}]", known_rows(dataset)
    if rows == 0:
        raise ValueError(f"{title} is empty: {dataset!r} gives no rows to train on.")
    if rows is not None and split and config.equal and rows < size:
        raise ValueError(_too_few(title, rows, size))
    return StreamPlan(dataset, split, config.equal, config.enable_shard_locality)


def _plan(name: str, dataset: Dataset, sharing: Sharing, size: int) -> tuple[ShardPlan, bool]:
    """A dataset's plan, and whether it is split."""
    dataset, split, config = _shared_out(name, dataset, sharing)
    title = f"datasets[{name!r}]"
    ranks = size if split else 1
    try:
        plan = dataset.prepare(
            ranks, equal=config.equal, order=config.order, seed=config.seed, name=title
        )
    except StorageError as error:
        raise StorageError(f"{title}: {error}") from error
    if not plan.rows:
        raise ValueError(f"{title} is empty: {_described(dataset)} gives no rows to train on.")
    if config.equal and plan.rows < ranks:
        raise ValueError(_too_few(title, plan.rows, ranks))
    return plan, split


def _too_few(title: str, rows: int, workers: int) -> str:
    return (
        f"{title} has {rows} rows for {workers} workers, so they cannot all get the same number; "
        "use fewer workers or DataConfig(equal=False)."
    )


def _described(dataset: Dataset) -> str:
    files = dataset.input_files()
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0]!r}{more}" if files else repr(dataset)


def check_positions(plans: Mapping[str, bytes], positions: Mapping[str, Any] | None) -> None:
    """Check that a run can resume its datasets where it stopped.

    Raises:
        ValueError: a dataset is not the one that was left in the middle of an epoch.
    """
    for name, position in (positions or {}).items():
        if plans.get(name):
            plan, _ = pickle.loads(plans[name])
            plan.shard(0, position)


def merge_positions(reports: Sequence[Report | None]) -> dict[str, Any] | None:
    """How far all ranks together have read each dataset, from their reports at one moment.

    None without datasets, and where a rank is missing (``save_checkpoint()`` is rank 0's alone).
    """
    known = [report.data for report in reports if report is not None and report.data is not None]
    if len(known) < len(reports) or not known:
        return None
    from lockstep.data import merge_states

    merged = {}
    for name in known[0].positions:
        states = [data.positions[name] for data in known]
        # Every rank reads all of a dataset that is not split; rank 0's position counts.
        not_split = states[0]["cut"]["world_size"] == 1
        merged[name] = merge_states(states[:1] if not_split else states)
    return merged
