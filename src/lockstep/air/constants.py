"""The names of metrics, files and keys that Ray has as constants."""

from __future__ import annotations

from lockstep.run_layout import PARAMS_FILE as EXPR_PARAM_FILE
from lockstep.run_layout import PROGRESS_FILE as EXPR_PROGRESS_FILE
from lockstep.run_layout import RESULT_FILE as EXPR_RESULT_FILE

__all__ = [
    "CHECKPOINT_ID_ATTR",
    "EVALUATION_DATASET_KEY",
    "EXPR_PARAM_FILE",
    "EXPR_PROGRESS_FILE",
    "EXPR_RESULT_FILE",
    "MODEL_KEY",
    "PREPROCESSOR_KEY",
    "TIMESTAMP",
    "TIME_THIS_ITER_S",
    "TRAINING_ITERATION",
    "TRAIN_DATASET_KEY",
]

CHECKPOINT_ID_ATTR = "_current_checkpoint_id"
EVALUATION_DATASET_KEY = "evaluation"
MODEL_KEY = "model"
PREPROCESSOR_KEY = "_preprocessor"
TIMESTAMP = "timestamp"
TIME_THIS_ITER_S = "time_this_iter_s"
TRAINING_ITERATION = "training_iteration"
TRAIN_DATASET_KEY = "train"
