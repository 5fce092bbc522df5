"""Preprocessors: what they learn, what they change, and how they are kept."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lockstep.data
from lockstep.data.preprocessor import FitStatus, PreprocessorNotFittedException
from lockstep.data.preprocessors import (
    BatchMapper,
    Chain,
    Concatenator,
    CountVectorizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    MultiHotEncoder,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    Preprocessor,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
    Tokenizer,
    TorchVisionPreprocessor,
)

FRAME = pd.DataFrame(
    {
        "x": [1, 2, 3, 6],
        "y": [2.0, None, 4.0, 4.0],
        "s": ["b", "a", None, "b"],
        "l": [["u", "v"], ["u"], [], ["w", "u"]],
        "t": ["one two", "two", "two  three", "one one"],
    }
)


@pytest.fixture
def dataset() -> lockstep.data.Dataset:
    return lockstep.data.from_pandas(FRAME, override_num_blocks=3)


def values(dataset: lockstep.data.Dataset, name: str) -> list[Any]:
    return [
        row[name].tolist() if hasattr(row[name], "tolist") else row[name]
        for row in dataset.take_all()
    ]


X = np.array([1.0, 2, 3, 6])
E = 2.718281828459045


@pytest.mark.parametrize(
    ("preprocessor", "column", "expected"),
    [
        (StandardScaler(["x"]), "x", list((X - X.mean()) / X.std())),
        (MinMaxScaler(["x"], output_columns=["z"]), "z", [0, 0.2, 0.4, 1]),
        (MaxAbsScaler(["x"]), "x", list(X / 6)),
        (RobustScaler(["x"]), "x", list((X - 2.5) / (3.75 - 1.75))),
        (StandardScaler(["y"]), "y", None),
        (PowerTransformer(["x"], power=2), "x", list(((X + 1) ** 2 - 1) / 2)),
        (PowerTransformer(["x"], power=0, method="box-cox"), "x", list(np.log(X))),
        (OrdinalEncoder(["s"]), "s", [1, 0, None, 1]),
        (OrdinalEncoder(["l"]), "l", [[0, 1], [0], [], [2, 0]]),
        (LabelEncoder("s", output_column="n"), "n", [1, 0, None, 1]),
        (OneHotEncoder(["s"]), "s", [[0, 1], [1, 0], [0, 0], [0, 1]]),
        (OneHotEncoder(["s"], max_categories={"s": 1}), "s", [[1], [0], [0], [1]]),
        (MultiHotEncoder(["l"]), "l", [[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1]]),
        (SimpleImputer(["y"]), "y", [2.0, 10 / 3, 4.0, 4.0]),
        (SimpleImputer(["s"], "most_frequent"), "s", ["b", "a", "b", "b"]),
        (SimpleImputer(["s"], "constant", "q"), "s", ["b", "a", "q", "b"]),
        (Normalizer(["x", "x"], norm="l1"), "x", [0.5, 0.5, 0.5, 0.5]),
        (Tokenizer(["t"]), "t", [["one", "two"], ["two"], ["two", "", "three"], ["one", "one"]]),
        (
            Tokenizer(["t"], str.split),
            "t",
            [["one", "two"], ["two"], ["two", "three"], ["one"] * 2],
        ),
        (CountVectorizer(["t"], str.split, 2), "t", [[1, 1], [0, 1], [0, 1], [2, 0]]),
        (Concatenator(["x", "y"], dtype=np.float32), "concat_out", None),
        (BatchMapper(lambda frame: frame[["x"]] * 2, batch_format="pandas"), "x", [2, 4, 6, 12]),
        (Chain(SimpleImputer(["y"]), MinMaxScaler(["y"])), "y", [0.0, 2 / 3, 1.0, 1.0]),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value)),
)
def test_a_dataset_and_what_is_kept(
    dataset: lockstep.data.Dataset, preprocessor: Preprocessor, column: str, expected: Any
) -> None:
    made = preprocessor.fit_transform(dataset)
    found = values(made, column)
    if expected is not None:
        if isinstance(expected[0], float):
            expected = pytest.approx(expected)
        assert found == expected
    again = Preprocessor.deserialize(preprocessor.serialize())
    assert type(again) is type(preprocessor)
    assert again.fit_status() == preprocessor.fit_status()
    np.testing.assert_equal(values(again.transform(dataset), column), found)
    assert made.count() == 4


def test_batches_keep_their_type(dataset: lockstep.data.Dataset) -> None:
    scaler = MinMaxScaler(["x"]).fit(dataset)
    frame = scaler.transform_batch(FRAME)
    assert isinstance(frame, pd.DataFrame)
    assert frame["x"].tolist() == [0, 0.2, 0.4, 1]
    arrays = scaler.transform_batch({"x": np.array([1, 6, 11])})
    assert arrays["x"].tolist() == [0, 1, 2]
    assert scaler.transform_batch(pa.table({"x": [6]}))["x"].to_pylist() == [1]


def test_what_was_learned_is_json(dataset: lockstep.data.Dataset) -> None:
    scaler = StandardScaler(["x"]).fit(dataset)
    assert scaler.stats_ == {"mean(x)": 3.0, "std(x)": pytest.approx(X.std())}
    assert "pickle" not in json.dumps(json.loads(scaler.serialize()))
    encoder = OrdinalEncoder(["s", "x"]).fit(dataset)
    stats = {"unique_values(s)": {"a": 0, "b": 1}, "unique_values(x)": {1: 0, 2: 1, 3: 2, 6: 3}}
    assert encoder.stats_ == stats
    assert Preprocessor.deserialize(encoder.serialize()).stats_ == stats


def test_labels_come_back(dataset: lockstep.data.Dataset) -> None:
    encoder = LabelEncoder("s")
    encoded = encoder.fit_transform(dataset)
    assert values(encoder.inverse_transform(encoded), "s") == ["b", "a", None, "b"]
    assert encoder.inverse_transform_batch({"s": np.array([1, 0])})["s"].tolist() == ["b", "a"]


def test_values_that_were_not_seen(dataset: lockstep.data.Dataset) -> None:
    new = {"s": np.array(["a", "new"], dtype=object)}
    assert OneHotEncoder(["s"]).fit(dataset).transform_batch(new)["s"].tolist() == [[1, 0], [0, 0]]
    numbers = OrdinalEncoder(["s"]).fit(dataset).transform_batch(new)["s"]
    assert numbers[0] == 0
    assert np.isnan(numbers[1])


def test_columns_of_one_value_and_of_arrays() -> None:
    dataset = lockstep.data.from_numpy({"c": np.ones(3), "v": np.arange(6.0).reshape(3, 2)})
    made = Chain(StandardScaler(["c", "v"]), Concatenator(["c", "v"])).fit_transform(dataset)
    assert made.columns() == ["concat_out"]
    side = np.sqrt(1.5)
    np.testing.assert_allclose(
        made.to_numpy("concat_out"), [[0, -side, -side], [0, 0, 0], [0, side, side]]
    )


def test_concatenated_columns(dataset: lockstep.data.Dataset) -> None:
    made = Concatenator(["y", "x"], "features", np.float32).transform(dataset)
    assert made.columns() == ["s", "l", "t", "features"]
    assert made.to_numpy("features").dtype == np.float32
    numbers = dataset.select_columns(["x", "y"])
    older = Concatenator(output_column_name="f", exclude=["y"]).transform(numbers)
    assert values(older, "f") == [[1], [2], [3], [6]]
    assert Concatenator(["x", "q"]).transform(numbers).columns() == ["y", "concat_out"]
    with pytest.raises(KeyError, match="Concatenator: there is no column 'q'"):
        Concatenator(["x", "q"], raise_if_missing=True).transform(numbers).take_all()


def test_images(dataset: lockstep.data.Dataset) -> None:
    images = lockstep.data.from_numpy(np.ones((3, 2, 2, 1), np.uint8), column="image")
    made = TorchVisionPreprocessor(["image"], lambda image: image / 2).transform(images)
    assert made.to_numpy("image").sum() == 6


def test_a_class_of_the_user(dataset: lockstep.data.Dataset) -> None:
    class Shift(Preprocessor):
        def _fit(self, dataset: lockstep.data.Dataset) -> Preprocessor:
            self.stats_ = {"min": dataset.min("x")}
            return self

        def _transform_pandas(self, frame: pd.DataFrame) -> pd.DataFrame:
            frame["x"] = frame["x"] - self.stats_["min"]
            return frame

    shift = Shift()
    assert values(shift.fit_transform(dataset), "x") == [0, 1, 2, 5]
    again = Preprocessor.deserialize(shift.serialize())
    assert again.transform_batch(FRAME)["x"].tolist() == [0, 1, 2, 5]


def test_statuses_and_errors(dataset: lockstep.data.Dataset) -> None:
    scaler = StandardScaler(["x"])
    assert scaler.fit_status() is FitStatus.NOT_FITTED
    with pytest.raises(PreprocessorNotFittedException, match=r"call fit\(dataset\) before"):
        scaler.transform(dataset)
    chain = Chain(scaler, MinMaxScaler(["x"]))
    scaler.fit(dataset)
    assert chain.fit_status() is FitStatus.PARTIALLY_FITTED
    assert chain.fit(dataset).fit_status() is FitStatus.FITTED
    assert Chain(Tokenizer(["t"])).fit_status() is FitStatus.NOT_FITTABLE
    with pytest.raises(KeyError, match="there is no column 'q'"):
        StandardScaler(["q"]).fit(dataset)
    with pytest.raises(TypeError, match=r"mean\(\) cannot be computed for column 's'"):
        StandardScaler(["s"]).fit(dataset)
    with pytest.raises(ValueError, match="2 output_columns for 1 columns"):
        StandardScaler(["x"], ["a", "b"])
    with pytest.raises(ValueError, match="strategy='median': give 'mean'"):
        SimpleImputer(["x"], "median")
    with pytest.raises(ValueError, match="no preprocessor of type 'Nope'"):
        Preprocessor.deserialize('{"type": "Nope"}')
