"""What a ``tf.data.Dataset`` needs before a strategy distributes it."""

from __future__ import annotations

from typing import Any

__all__ = ["prepare_dataset_shard"]


def prepare_dataset_shard(tf_dataset_shard: Any) -> Any:
    """Return the dataset, marked as this worker's shard: no strategy shards it again.

    Without this mark ``MultiWorkerMirroredStrategy`` shards every dataset: a worker that already
    has its shard would train on only a part of it.

    Args:
        tf_dataset_shard: a ``tf.data.Dataset`` with this worker's rows.
    """
    import tensorflow as tf

    if not isinstance(tf_dataset_shard, tf.data.Dataset):
        raise TypeError(
            f"prepare_dataset_shard({tf_dataset_shard!r}): expected a tf.data.Dataset, such as "
            "tf.data.Dataset.from_tensor_slices(…) makes."
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf_dataset_shard.with_options(options)
