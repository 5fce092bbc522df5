"""Datasets to and from TensorFlow; in another process, as importing it changes the environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import tensorflow as tf
import lockstep.data

dataset = lockstep.data.from_items([{"x": [i, i + 1], "y": i, "s": str(i)} for i in range(5)])
for _ in range(2):
    pairs = list(dataset.to_tf("x", "y", batch_size=2))
    assert [pair[1].numpy().tolist() for pair in pairs] == [[0, 1], [2, 3], [4]]
    assert pairs[0][0].shape == (2, 2)
features, label = next(iter(dataset.to_tf(["x", "s"], ["y"], batch_size=2)))
assert features["s"].dtype == tf.string
assert label["y"].dtype == tf.int64
*_, more = next(iter(dataset.to_tf("x", "y", additional_columns="s")))
assert more.numpy().tolist() == [b"0"]
try:
    dataset.to_tf("q", "y")
except KeyError as error:
    assert "to_tf: there is no column 'q'" in str(error)
else:
    raise AssertionError("no error")
(batch,) = dataset.select_columns(["y"]).iter_tf_batches(dtypes=tf.float32)
assert batch["y"].dtype == tf.float32
tensors = lockstep.data.range_tensor(3, shape=(2, 2)).add_column("y", lambda frame: 1)
assert next(iter(tensors.to_tf("data", "y", batch_size=3)))[0].shape == (3, 2, 2)
back = lockstep.data.from_tf(tf.data.Dataset.from_tensor_slices({"a": [1, 2]}))
assert back.take_all() == [{"a": 1}, {"a": 2}]
pairs = lockstep.data.from_tf(tf.data.Dataset.from_tensor_slices(([1, 2], [3, 4])))
assert pairs.take(1) == [{"item_0": 1, "item_1": 3}]
print("fine")
"""


@pytest.mark.timeout(180)
@pytest.mark.environment("tensorflow")
def test_tensorflow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.stdout == "fine\n", done.stderr
