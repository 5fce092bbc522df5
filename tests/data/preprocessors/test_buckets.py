"""Bins, hashes and categories."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lockstep.data
from lockstep.data.preprocessor import Preprocessor
from lockstep.data.preprocessors import (
    Categorizer,
    Concatenator,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    LabelEncoder,
    UniformKBinsDiscretizer,
)

FRAME = pd.DataFrame({"a": [0.2, 1.4, 2.5, 6.2, 9.7, 2.1], "b": [10, 15, 13, 12, 23, 25]})


def again(preprocessor: Preprocessor) -> Preprocessor:
    """The same preprocessor from its text."""
    return Preprocessor.deserialize(preprocessor.serialize())


def test_bins_of_ones_own() -> None:
    dataset = lockstep.data.from_pandas(FRAME)
    bins = CustomKBinsDiscretizer(["a", "b"], [0, 1, 4, 10, 25])
    found = again(bins).transform(dataset).to_pandas()
    assert found["a"].tolist() == [0, 1, 1, 2, 2, 1]
    assert found["b"].tolist() == [2, 3, 3, 3, 3, 3]
    named = CustomKBinsDiscretizer(
        ["a"],
        {"a": [0, 3, 10]},
        dtypes={"a": pd.CategoricalDtype(["low", "high"], ordered=True)},
        output_columns=["level"],
    )
    found = again(named).transform(dataset).to_pandas()
    assert found["level"].tolist() == ["low", "low", "low", "high", "high", "low"]
    assert found["level"].cat.ordered
    with pytest.raises(ValueError, match="none for 'b'"):
        CustomKBinsDiscretizer(["a", "b"], {"a": [0, 1]})


@pytest.mark.parametrize("right", [True, False])
def test_bins_of_one_width_are_those_of_pandas(right: bool) -> None:
    bins = UniformKBinsDiscretizer(["a"], 4, right=right, dtypes={"a": np.int8})
    bins.fit(lockstep.data.from_pandas(FRAME))
    found = again(bins).transform_batch(FRAME)
    assert found["a"].tolist() == pd.cut(FRAME["a"], 4, labels=False, right=right).tolist()
    assert found["a"].dtype == np.int8
    with pytest.raises(ValueError, match="bins=0"):
        UniformKBinsDiscretizer(["a"], 0)


def test_hashes_are_the_same_everywhere() -> None:
    texts = pd.DataFrame({"text": ["I like it", "I I no", None]})
    found = again(HashingVectorizer(["text"], 5)).transform_batch(texts)["text"]
    assert [list(row) for row in found] == [[1, 2, 0, 0, 0], [0, 2, 0, 1, 0], [0, 0, 0, 0, 0]]
    found = again(FeatureHasher(["a", "b"], 4, "hashed")).transform_batch(FRAME)
    assert list(found["hashed"][0]) == [10.2, 0, 0, 0]


def test_categories() -> None:
    dataset = lockstep.data.from_items([{"sex": sex} for sex in ("m", "f", None, "m")])
    kept = again(Categorizer(["sex"]).fit(dataset))
    assert kept.stats_["sex"].categories.tolist() == ["f", "m"]
    found = kept.transform(dataset).to_pandas()
    assert str(found["sex"].dtype) == "category"
    unknown = kept.transform_batch(pd.DataFrame({"sex": ["f", "x"]}))
    assert unknown["sex"].isna().tolist() == [False, True]
    given = Categorizer(["sex"], {"sex": pd.CategoricalDtype(["m"])}).fit(dataset)
    assert given.stats_["sex"].categories.tolist() == ["m"]


def test_which_columns_are_read_and_written() -> None:
    hasher = FeatureHasher(["a", "b"], 4, "hashed")
    assert (hasher.get_input_columns(), hasher.get_output_columns()) == (["a", "b"], ["hashed"])
    encoder = LabelEncoder("x")
    assert (encoder.get_input_columns(), encoder.get_output_columns()) == (["x"], ["x"])
    assert Concatenator(["a"]).get_output_columns() == ["concat_out"]


def test_hints_for_the_transform_are_accepted() -> None:
    dataset = lockstep.data.from_pandas(FRAME)
    bins = UniformKBinsDiscretizer(["a"], 2)
    found = bins.fit_transform(dataset, transform_batch_size=2, transform_num_cpus=1)
    assert found.to_pandas()["a"].tolist() == [0, 0, 0, 1, 1, 0]
    with pytest.raises(TypeError, match="speed"):
        bins.fit_transform(dataset, transform_speed=1)
