"""What a ``tf.data.Dataset`` needs before a strategy distributes it."""

from __future__ import annotations

from typing import Any

__all__ = ["prepare_dataset_shard"]


def prepare_dataset_shard(tf_dataset_shard: Any) -> Any:
    """The dataset, marked as this worker's own share: no strategy splits it once more.

    Without this ``MultiWorkerMirroredStrategy`` shards what it is given, and a worker that was
    given its shard already would train on a part of it only.

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
