"""Bins, hashes and categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lockstep.data
from lockstep.data.preprocessor import Preprocessor
from lockstep.data.preprocessors import (
    Categorizer,
    Chain,
    Concatenator,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    LabelEncoder,
    OneHotEncoder,
    OrdinalEncoder,
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
    chain = Chain(Categorizer(["s"], output_columns=["t"]), OrdinalEncoder(["t", "x"]), encoder)
    assert chain.get_input_columns() == ["s", "x"]
    assert chain.get_output_columns() == ["t", "x"]
    assert FeatureHasher("ab", 4, "hashed").get_input_columns() == ["ab"]


def test_hints_for_the_transform_are_accepted() -> None:
    dataset = lockstep.data.from_pandas(FRAME)
    bins = UniformKBinsDiscretizer(["a"], 2)
    found = bins.fit_transform(dataset, transform_batch_size=2, transform_num_cpus=1)
    assert found.to_pandas()["a"].tolist() == [0, 0, 0, 1, 1, 0]
    with pytest.raises(TypeError, match="speed"):
        bins.fit_transform(dataset, transform_speed=1)


@pytest.mark.parametrize("dtype", [None, np.int8, "Int16", "float32"])
def test_numbers_of_bins_have_one_type_in_every_batch(dtype: Any) -> None:
    parts = [[0.5, 1.5], [None, 1.5], [0.5, 99.0], [None, None]]
    tables = [pa.table({"x": pa.array(part, pa.float64())}) for part in parts]
    tables.append(pa.table({"x": pa.nulls(1)}))
    bins = CustomKBinsDiscretizer(["x"], [0, 1, 2], dtypes=None if dtype is None else {"x": dtype})
    made = [again(bins).transform_batch(table)["x"] for table in tables]
    kind = pa.int64() if dtype is None else pa.array(pd.array([], dtype=dtype)).type
    assert {column.type for column in made} == {kind}
    assert [column.to_pylist() for column in made] == [
        [0, 1], [None, 1], [0, None], [None, None], [None],
    ]  # fmt: skip
    found = bins.transform(lockstep.data.from_arrow(tables[:4]))
    assert found.schema().types == [kind]
    assert found.to_arrow()["x"].type == kind


@pytest.mark.parametrize("values", [[5, 5], [0.0, 0.0], [-3.0, None, -3.0], [1e9, 1e9]], ids=repr)
@pytest.mark.parametrize("bins", [1, 3, 4])
def test_a_constant_column_has_the_bins_of_pandas(values: list[Any], bins: int) -> None:
    frame = pd.DataFrame({"x": values})
    made = UniformKBinsDiscretizer(["x"], bins).fit(lockstep.data.from_pandas(frame))
    expected = pd.cut(frame["x"], bins, labels=False).astype("Int64")
    assert made.transform_batch(frame)["x"].astype("Int64").equals(expected)


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        (pa.array([None, None], pa.float64()), "None to None"),
        (pa.array([1.0, float("inf")]), "1.0 to inf"),
        (pa.array(["1", "2"]), "'1' to '2'"),
        (pa.array([-1e308, 1e308]), r"-1e\+308 to 1e\+308"),
    ],
    ids=["null", "infinite", "text", "too wide"],
)
def test_a_column_without_finite_ends_has_no_uniform_bins(values: pa.Array, ends: str) -> None:
    dataset = lockstep.data.from_arrow(pa.table({"x": values}))
    with pytest.raises(ValueError, match=f"column 'x' is from {ends}"):
        UniformKBinsDiscretizer(["x"], 3).fit(dataset)


@pytest.mark.parametrize(
    ("bins", "error", "message"),
    [
        (3, TypeError, "of columns: 3: give the edges"),
        ("abc", TypeError, "'abc': give the edges"),
        ([1], ValueError, "at least two edges"),
        ({"x": [2, 1]}, ValueError, r"of x: \[2, 1\]: .*ascending order"),
    ],
    ids=repr,
)
def test_edges_of_bins_are_checked_at_once(bins: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CustomKBinsDiscretizer(["x"], bins)


def test_bins_of_text_are_refused() -> None:
    with pytest.raises(ValueError, match="column 'x' is of type string; give numbers"):
        CustomKBinsDiscretizer(["x"], [0, 1]).transform_batch(pa.table({"x": ["a"]}))


def test_bins_as_intervals_and_as_an_iterator() -> None:
    table = pa.table({"x": [0.5, None, 1.0, 2.5, 9.0]})
    intervals = pd.interval_range(0, 3)
    made = again(CustomKBinsDiscretizer(["x"], intervals)).transform_batch(table)["x"]
    assert (made.type, made.to_pylist()) == (pa.int64(), [0, None, 0, 2, None])
    names = pd.CategoricalDtype(["low", "mid", "high"])
    named = again(CustomKBinsDiscretizer(["x"], intervals, dtypes={"x": names}))
    assert named.transform_batch(table)["x"].to_pylist() == ["low", None, "low", "high", None]
    edges = CustomKBinsDiscretizer(["x"], iter([0, 1, 2, 3]))
    for _ in range(2):
        assert edges.transform_batch(table)["x"].to_pylist() == [0, None, 0, 2, None]


@pytest.mark.parametrize(
    ("fitted", "given", "found"),
    [
        (["a", "b"], pa.array(["b", "q", None]).dictionary_encode(), ["b", None, None]),
        (["a", "b"], pa.nulls(2), [None, None]),
        ([1, 300], pa.array([1, 2], pa.int8()), [1, None]),
        ([1.5, 2.0], pa.array([2, 3]), [2.0, None]),
        ([2.0, float("nan"), 1.0, None], pa.array([1.0, float("nan")]), [1.0, None]),
    ],
    ids=["dictionary", "null", "narrow", "whole", "nan"],
)
def test_columns_of_other_types_than_the_categories(
    fitted: list[Any], given: pa.Array, found: list[Any]
) -> None:
    dataset = lockstep.data.from_arrow(pa.table({"x": fitted}))
    table = pa.table({"x": given})
    made = again(Categorizer(["x"]).fit(dataset)).transform_batch(table)["x"]
    assert pa.types.is_dictionary(made.type)
    assert made.to_pylist() == found
    known = sorted(v for v in fitted if v is not None and not pd.isna(v))
    numbers = [None if value is None else known.index(value) for value in found]
    encoded = again(OrdinalEncoder(["x"]).fit(dataset)).transform_batch(table)["x"]
    assert encoded.to_pylist() == numbers


def test_categories_of_another_kind_are_refused() -> None:
    dataset = lockstep.data.from_items([{"x": 1}])
    made = Categorizer(["x"], {"x": pd.CategoricalDtype(["a"])}).fit(dataset)
    with pytest.raises(ValueError, match="column 'x' is of type int64, and its categories"):
        made.transform_batch(pa.table({"x": [1]}))


@pytest.mark.parametrize("kind", [Categorizer, OrdinalEncoder, OneHotEncoder])
def test_categories_of_pandas_are_learned(kind: Any) -> None:
    frames = [
        pd.DataFrame({"x": pd.Categorical(["b", None])}),
        pd.DataFrame({"x": pd.Categorical(["a", "b"], ["a", "b"])}),
    ]
    found = kind(["x"]).fit_transform(lockstep.data.from_pandas(frames)).to_arrow()["x"]
    expected = {
        Categorizer: ["b", None, "a", "b"],
        OrdinalEncoder: [1, None, 0, 1],
        OneHotEncoder: [[0, 1], [0, 0], [1, 0], [0, 1]],
    }
    assert found.to_pylist() == expected[kind]


def test_counts_that_are_null_are_hashed_as_0() -> None:
    table = pa.table({"a": [1, None], "b": [0.5, 2.0], "c": [True, False], "d": pa.nulls(2)})
    made = FeatureHasher(["a", "b", "c", "d"], 1, "h").transform_batch(table)["h"]
    assert [list(row) for row in made.to_pylist()] == [[2.5], [2.0]]


def test_hashing_a_column_of_another_type_names_it() -> None:
    table = pa.table({"n": [1, 2], "s": ["a b", "c"]})
    with pytest.raises(ValueError, match="FeatureHasher: column 's' is of type string"):
        FeatureHasher(["n", "s"], 2, "h").transform_batch(table)
    with pytest.raises(ValueError, match="HashingVectorizer: column 'n' is of type int64"):
        HashingVectorizer(["n"], 2).transform_batch(table)
    own = HashingVectorizer(["n"], 1, lambda number: ["x"] * number)  # type: ignore[operator]
    assert own.transform_batch(table)["n"].to_pylist() == [[1], [2]]
