"""A ``tf.data.Dataset`` of features and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lockstep.data.plan.operations import known

__all__ = ["tf_dataset"]


def tf_dataset(
    batches: Iterable[Mapping[str, Any]],
    schema: Any,
    parts: Sequence[str | Sequence[str] | None],
    specs: Sequence[Any],
) -> Any:
    """Batches of columns as a ``tf.data.Dataset``; see ``DataIterator.to_tf``.

    Args:
        batches: re-iterable dicts of arrays.
        schema: Arrow's, of the rows.
        parts: the features, the labels and, or None, what else to give.
        specs: a type for each of these, or None to find it.
    """
    import tensorflow as tf

    wanted = [part for part in parts if part is not None]
    for part in wanted:
        known([part] if isinstance(part, str) else part, schema.names, "to_tf")
    signature = tuple(
        _spec(tf, part, schema) if spec is None else spec
        for part, spec in zip(parts, specs, strict=True)
        if part is not None
    )

    def make() -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            yield tuple(
                batch[part] if isinstance(part, str) else {name: batch[name] for name in part}
                for part in wanted
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
