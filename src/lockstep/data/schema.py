"""What ``schema()`` of datasets and shards returns: an Arrow schema, under the names of Ray's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Schema"]


class Schema:
    """The columns of a dataset and their types. What an Arrow schema has, this has, too.

    Attributes:
        base_schema: the Arrow schema.
        names: the columns' names.
        types: the columns' Arrow types.
    """

    def __init__(self, base_schema: pa.Schema) -> None:
        self.base_schema = base_schema
        self.names: list[str] = list(base_schema.names)
        self.types: list[Any] = list(base_schema.types)

    def equals(self, other: Any, **options: Any) -> bool:
        """Whether the columns and types are the same as another schema's."""
        return bool(self.base_schema.equals(getattr(other, "base_schema", other), **options))

    def __eq__(self, other: object) -> bool:
        try:
            return self.equals(other)
        except TypeError:
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self.base_schema)

    def __getitem__(self, key: int | str) -> pa.Field:
        """A column's field, by its position or its name."""
        return self.base_schema.field(key)

    def __iter__(self) -> Iterator[pa.Field]:
        return iter(self.base_schema)

    def __len__(self) -> int:
        return len(self.names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "base_schema":
            raise AttributeError(name)
        return getattr(self.base_schema, name)

    def __repr__(self) -> str:
        rows = [("Column", "Type"), ("------", "----")]
        rows += [(name, str(kind)) for name, kind in zip(self.names, self.types, strict=True)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {kind}" for name, kind in rows)
