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
    RandomSeedConfig,
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
    read_sql,
)
from lockstep.data.dataset import Dataset
from lockstep.data.iterate.iterator import DataIterator
from lockstep.data.iterate.iterator import DataIterator as DatasetIterator
from lockstep.data.iterate.shard import DataShard, ShardPlan, merge_states
from lockstep.data.methods.reordering import MixStoppingCondition
from lockstep.data.methods.summary import DatasetSummary
from lockstep.data.methods.transforms import ActorPoolStrategy, TaskPoolStrategy
from lockstep.data.read import (
    read_audio,
    read_avro,
    read_binary_files,
    read_csv,
    read_images,
    read_json,
    read_numpy,
    read_orc,
    read_parquet,
    read_text,
    read_tfrecords,
    read_videos,
    read_webdataset,
)
from lockstep.data.schema import Schema

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
    "DatasetSummary",
    "ExecutionOptions",
    "ExecutionResources",
    "FileShuffleConfig",
    "MixStoppingCondition",
    "Preprocessor",
    "RandomSeedConfig",
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
    "read_audio",
    "read_avro",
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_numpy",
    "read_orc",
    "read_parquet",
    "read_sql",
    "read_text",
    "read_tfrecords",
    "read_videos",
    "read_webdataset",
]


_INSTEAD = {
    "read_parquet_bulk": "read_parquet(…)",
    "range_table": "range(…)",
    "set_progress_bars": "DataContext.get_current().enable_progress_bars",
    "read_datasource": "from_items, from_arrow or from_torch, or a generator in flat_map",
    **dict.fromkeys(
        ("read_lerobot", "read_zarr", "read_mcap"),
        "the format's own library, and from_torch, from_numpy or map_batches",
    ),
    **dict.fromkeys(
        (
            "read_bigquery", "read_clickhouse", "read_databricks_tables", "read_delta",
            "read_delta_sharing_tables", "read_hudi", "read_iceberg", "read_kafka", "read_lance",
            "read_mongo", "read_snowflake", "read_unity_catalog",
        ),
        "the source's own client, and from_arrow or from_pandas",
    ),
    **dict.fromkeys(
        ("from_dask", "from_daft", "from_mars", "from_modin", "from_spark"),
        "its conversion to pandas or Arrow, and from_pandas or from_arrow",
    ),
}  # fmt: skip
"""Names of Ray Data that lockstep does not have → what to use."""


def __getattr__(name: str) -> Any:
    if name == "Preprocessor":
        from lockstep.data.preprocessor import Preprocessor

        return Preprocessor
    if name in _INSTEAD:
        raise AttributeError(f"lockstep.data has no {name!r}; use {_INSTEAD[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
