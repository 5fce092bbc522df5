"""Ray Data's module of the base class; importing it also loads the classes that can be restored."""

import lockstep.data.preprocessors  # noqa: F401  # for its effect
from lockstep.data.preprocessors.base import (
    FitStatus,
    Preprocessor,
    PreprocessorNotFittedException,
)

__all__ = ["FitStatus", "Preprocessor", "PreprocessorNotFittedException"]
