"""Preprocessors: columns changed in a way that is learned from a dataset, and kept with a model."""

from lockstep.data.preprocessors.base import Preprocessor
from lockstep.data.preprocessors.buckets import (
    Categorizer,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    UniformKBinsDiscretizer,
)
from lockstep.data.preprocessors.encoders import (
    LabelEncoder,
    MultiHotEncoder,
    OneHotEncoder,
    OrdinalEncoder,
    SimpleImputer,
)
from lockstep.data.preprocessors.functions import (
    BatchMapper,
    Chain,
    Concatenator,
    CountVectorizer,
    Tokenizer,
    TorchVisionPreprocessor,
)
from lockstep.data.preprocessors.scalers import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)

__all__ = [
    "BatchMapper",
    "Categorizer",
    "Chain",
    "Concatenator",
    "CountVectorizer",
    "CustomKBinsDiscretizer",
    "FeatureHasher",
    "HashingVectorizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MultiHotEncoder",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PowerTransformer",
    "Preprocessor",
    "RobustScaler",
    "SimpleImputer",
    "StandardScaler",
    "Tokenizer",
    "TorchVisionPreprocessor",
    "UniformKBinsDiscretizer",
]
