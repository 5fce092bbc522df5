"""Sharded, streaming, resumable datasets on Arrow.

A dataset is read lazily, transformed in the worker that uses its rows, and divided among workers
without a coordinator: each rank finds its rows from the dataset's index.
"""

from typing import TYPE_CHECKING, Any

from lockstep.data.compat import (
    DataContext,
    ExecutionOptions,
    ExecutionResources,
    FileShuffleConfig,
)
from lockstep.data.compat import DataContext as DatasetContext
from lockstep.data.config import DataConfig, DatasetConfig
from lockstep.data.create import (
    from_arrow,
    from_arrow_refs,
    from_huggingface,
    from_items,
    from_numpy,
    from_numpy_refs,
    from_pandas,
    from_pandas_refs,
    from_tf,
    from_torch,
    range,
    range_tensor,
)
from lockstep.data.dataset import Dataset
from lockstep.data.iterate.iterator import DataIterator
from lockstep.data.iterate.iterator import DataIterator as DatasetIterator
from lockstep.data.iterate.shard import DataShard, ShardPlan, merge_states
from lockstep.data.read import (
    read_binary_files,
    read_csv,
    read_images,
    read_json,
    read_numpy,
    read_parquet,
    read_text,
    read_tfrecords,
    read_webdataset,
)
from lockstep.data.schema import Schema
from lockstep.data.transforms import ActorPoolStrategy, TaskPoolStrategy

if TYPE_CHECKING:
    from lockstep.data.preprocessor import Preprocessor

__all__ = [
    "ActorPoolStrategy",
    "DataConfig",
    "DataContext",
    "DataIterator",
    "DataShard",
    "Dataset",
    "DatasetConfig",
    "DatasetContext",
    "DatasetIterator",
    "ExecutionOptions",
    "ExecutionResources",
    "FileShuffleConfig",
    "Preprocessor",
    "Schema",
    "ShardPlan",
    "TaskPoolStrategy",
    "from_arrow",
    "from_arrow_refs",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_numpy_refs",
    "from_pandas",
    "from_pandas_refs",
    "from_tf",
    "from_torch",
    "merge_states",
    "range",
    "range_tensor",
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_numpy",
    "read_parquet",
    "read_text",
    "read_tfrecords",
    "read_webdataset",
]


def __getattr__(name: str) -> Any:
    if name == "Preprocessor":
        from lockstep.data.preprocessor import Preprocessor

        return Preprocessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
