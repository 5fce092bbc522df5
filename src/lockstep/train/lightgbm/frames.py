"""Data frames as LightGBM takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["normalize_pandas_for_lightgbm"]

_OWN = {"i": "Int", "u": "UInt", "f": "Float"}


def normalize_pandas_for_lightgbm(df: pd.DataFrame) -> pd.DataFrame:
    """A frame with pandas' own numbers in place of Arrow's, which LightGBM refuses.

    Frames of lockstep's datasets have none of Arrow's, and are returned as they are.
    """
    import pandas as pd

    changes = {
        name: "boolean" if kind.kind == "b" else f"{_OWN[kind.kind]}{kind.pyarrow_dtype.bit_width}"
        for name, kind in df.dtypes.items()
        if isinstance(kind, pd.ArrowDtype) and kind.kind in "iufb"
    }
    return df.astype(changes) if changes else df
