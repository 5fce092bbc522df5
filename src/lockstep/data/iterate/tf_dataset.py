"""A ``tf.data.Dataset`` of features and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lockstep.data.plan.operations import check_columns

__all__ = ["tf_dataset"]


def tf_dataset(
    batches: Iterable[Mapping[str, Any]],
    schema: Any,
    parts: Sequence[str | Sequence[str] | None],
    specs: Sequence[Any],
) -> Any:
    """Batches of columns as a ``tf.data.Dataset``; see ``DataIterator.to_tf``.

    Args:
        batches: dicts of arrays; iterable more than once.
        schema: the rows' Arrow schema.
        parts: the columns of the features, of the labels and, or None, additional columns.
        specs: a type for each part, or None to derive it.
    """
    import tensorflow as tf

    given = [part for part in parts if part is not None]
    for part in given:
        check_columns([part] if isinstance(part, str) else part, schema.names, "to_tf")
    signature = tuple(
        _spec(tf, part, schema) if spec is None else spec
        for part, spec in zip(parts, specs, strict=True)
        if part is not None
    )

    def make() -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            yield tuple(
                batch[part] if isinstance(part, str) else {name: batch[name] for name in part}
                for part in given
            )

    return tf.data.Dataset.from_generator(make, output_signature=signature)


def _spec(tf: Any, part: str | Sequence[str], schema: Any) -> Any:
    if not isinstance(part, str):
        return {name: _spec(tf, name, schema) for name in part}
    from lockstep.data.arrow.columns import to_numpy

    kind = schema.field(part).type
    sample = to_numpy(schema.empty_table()[part])
    shape = sample.shape[1:]
    dtype = tf.string if sample.dtype == object else tf.as_dtype(sample.dtype)
    if sample.dtype == object and str(kind).startswith(("list", "large_list")):
        return tf.TensorSpec((None, None), tf.as_dtype(kind.value_type.to_pandas_dtype()), part)
    return tf.TensorSpec((None, *shape), dtype, part)
