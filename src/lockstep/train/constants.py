"""The names of keys that Ray Train has as constants."""

from __future__ import annotations

__all__ = [
    "CHECKPOINT_DIR_NAME",
    "EVALUATION_DATASET_KEY",
    "MODEL_KEY",
    "PREPROCESSOR_KEY",
    "TRAIN_DATASET_KEY",
    "TUNE_CHECKPOINT_ID",
]

CHECKPOINT_DIR_NAME = "checkpoint_dir_name"
EVALUATION_DATASET_KEY = "evaluation"
MODEL_KEY = "model"
PREPROCESSOR_KEY = "_preprocessor"
TRAIN_DATASET_KEY = "train"
TUNE_CHECKPOINT_ID = "_current_checkpoint_id"
