"""Expressions over columns: ``(col("x") + 1).alias("y")``, computed by Arrow on whole blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.data.datatype import DataType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Expr", "col", "download", "lit", "pyarrow_udf", "random", "udf", "uuid"]


class Expr(ABC):
    """A value for each row: a column, a constant, or a function of such values.

    Operators (``+ - * / // %``, comparisons, ``& | ~``) and methods make new expressions. ``/`` of
    two integers is an integer, as in Arrow; ``cast`` one side to divide exactly. ``.str``,
    ``.list``, ``.dt`` and ``.struct`` have functions of text, lists, times and structs.
    """

    name: str | None = None
    """The name of the column that it makes, where it has one."""
    runs_user_code = False

    @abstractmethod
    def evaluate(self, table: pa.Table) -> Any:
        """The values for the rows of a table: an Arrow column, or a scalar for all rows."""

    @abstractmethod
    def to_pyarrow(self) -> Any:
        """The same as an Arrow expression.

        Raises:
            TypeError: it calls a function of the user, which Arrow cannot.
        """

    def alias(self, name: str) -> Expr:
        """The same values under a name."""
        return _Alias(self, name)

    def cast(self, target_type: Any, *, safe: bool = True) -> Expr:
        """The values as another type: an Arrow type, or its name."""
        kind = getattr(target_type, "arrow", target_type)
        return _Function("cast", (self,), {"target_type": kind, "safe": safe})

    def is_null(self) -> Expr:
        """Whether the value is null."""
        return _Function("is_null", (self,))

    def is_not_null(self) -> Expr:
        """Whether the value is not null."""
        return _Function("is_valid", (self,))

    def is_in(self, values: Iterable[Any]) -> Expr:
        """Whether the value is one of these."""
        import pyarrow as pa

        found = values.evaluate(pa.table({})) if isinstance(values, Expr) else list(values)
        return _Function("is_in", (self,), {"value_set": pa.array(list(found))})

    def not_in(self, values: Iterable[Any]) -> Expr:
        """Whether the value is none of these."""
        return ~self.is_in(values)

    def power(self, exponent: Any) -> Expr:
        """The value to the power of ``exponent``."""
        return _binary("power", self, exponent)

    def round(self, ndigits: int = 0) -> Expr:
        """Rounded to this many digits; half to even."""
        return _Function("round", (self,), {"ndigits": ndigits})

    def __getattr__(self, name: str) -> Any:
        if name in _MATH:
            return lambda: _Function(_MATH[name], (self,))
        raise AttributeError(f"An expression has no {name!r}; use a udf for other functions.")

    @property
    def str(self) -> Any:
        """Functions of text: ``upper``, ``len``, ``contains``, ``replace``, ``split``, …."""
        return _Namespace(self, "str", _TEXT)

    @property
    def list(self) -> Any:
        """Functions of lists: ``len``, ``get``, ``slice``, ``flatten``, ``sort``; ``list[0]``."""
        return _Namespace(self, "list", _LISTS)

    @property
    def dt(self) -> Any:
        """Functions of times: ``year``, ``month``, …, ``strftime``, ``floor``."""
        return _Namespace(self, "dt", _TIMES)

    @property
    def struct(self) -> Any:
        """``field(name)`` of structs; ``struct["name"]``."""
        return _Namespace(self, "struct", _STRUCTS)

    @property
    def map(self) -> Any:
        """``keys()`` and ``values()`` of maps."""
        return _Namespace(self, "map", {"keys": "_map_keys", "values": "_map_values"})

    @property
    def arr(self) -> Any:
        """``to_list()`` of arrays of one size."""
        return _Namespace(self, "arr", {"to_list": "_to_list"})

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]  # an expression, no bool
        return _binary("equal", self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]  # an expression, no bool
        return _binary("not_equal", self, other)

    __hash__ = object.__hash__

    def __lt__(self, other: Any) -> Expr:
        return _binary("less", self, other)

    def __le__(self, other: Any) -> Expr:
        return _binary("less_equal", self, other)

    def __gt__(self, other: Any) -> Expr:
        return _binary("greater", self, other)

    def __ge__(self, other: Any) -> Expr:
        return _binary("greater_equal", self, other)

    def __add__(self, other: Any) -> Expr:
        return _sum(self, other)

    def __radd__(self, other: Any) -> Expr:
        return _sum(other, self)

    def __sub__(self, other: Any) -> Expr:
        return _binary("subtract", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return _binary("subtract", other, self)

    def __mul__(self, other: Any) -> Expr:
        return _binary("multiply", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return _binary("multiply", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return _binary("divide", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return _binary("divide", other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return _Function("floor", (_binary("divide", self, other),))

    def __rfloordiv__(self, other: Any) -> Expr:
        return _Function("floor", (_binary("divide", other, self),))

    def __mod__(self, other: Any) -> Expr:
        return _remainder(self, other)

    def __rmod__(self, other: Any) -> Expr:
        return _remainder(other, self)

    def __neg__(self) -> Expr:
        return _Function("negate", (self,))

    def __and__(self, other: Any) -> Expr:
        return _binary("and_kleene", self, other)

    def __or__(self, other: Any) -> Expr:
        return _binary("or_kleene", self, other)

    def __invert__(self) -> Expr:
        return _Function("invert", (self,))

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has a value for each row; combine expressions with & | ~.")


_MATH = {
    "abs": "abs", "acos": "acos", "asin": "asin", "atan": "atan", "ceil": "ceil", "cos": "cos",
    "exp": "exp", "floor": "floor", "ln": "ln", "log10": "log10", "log2": "log2",
    "negate": "negate", "sign": "sign", "sin": "sin", "tan": "tan", "trunc": "trunc",
}  # fmt: skip
_STRUCTS = {"field": "struct_field", "field_by_index": "struct_field"}
_TEXT = {
    "len": "utf8_length", "byte_len": "binary_length", "upper": "utf8_upper",
    "lower": "utf8_lower", "capitalize": "utf8_capitalize", "title": "utf8_title",
    "swapcase": "utf8_swapcase", "reverse": "utf8_reverse", "is_alpha": "utf8_is_alpha",
    "is_alnum": "utf8_is_alnum", "is_digit": "utf8_is_digit", "is_decimal": "utf8_is_decimal",
    "is_numeric": "utf8_is_numeric", "is_space": "utf8_is_space", "is_lower": "utf8_is_lower",
    "is_upper": "utf8_is_upper", "is_title": "utf8_is_title", "is_ascii": "string_is_ascii",
    "is_printable": "utf8_is_printable", "starts_with": "starts_with", "ends_with": "ends_with",
    "contains": "match_substring", "match": "match_like", "match_regex": "match_substring_regex",
    "find": "find_substring", "find_regex": "find_substring_regex", "count": "count_substring",
    "count_regex": "count_substring_regex", "slice": "utf8_slice_codeunits",
    "replace": "replace_substring", "replace_regex": "replace_substring_regex",
    "replace_slice": "utf8_replace_slice", "split": "split_pattern",
    "split_regex": "split_pattern_regex", "split_whitespace": "utf8_split_whitespace",
    "extract": "extract_regex", "repeat": "binary_repeat", "center": "utf8_center",
    "lpad": "utf8_lpad", "rpad": "utf8_rpad", "strip": "utf8_trim", "lstrip": "utf8_ltrim",
    "rstrip": "utf8_rtrim",
}  # fmt: skip
_LISTS = {
    "len": "list_value_length", "get": "list_element", "slice": "list_slice",
    "flatten": "list_flatten", "sort": "_list_sort",
}  # fmt: skip
_TIMES = {
    "year": "year", "month": "month", "day": "day", "hour": "hour", "minute": "minute",
    "second": "second", "strftime": "strftime", "ceil": "ceil_temporal",
    "floor": "floor_temporal", "round": "round_temporal",
}  # fmt: skip


class _Namespace:
    """Functions of one kind of values, by Ray's names for them."""

    def __init__(self, value: Expr, kind: str, functions: Mapping[str, str]) -> None:
        self._value, self._kind, self._functions = value, kind, functions

    def __getattr__(self, name: str) -> Callable[..., Expr]:
        function = self._functions.get(name)
        if function is None:
            known = ", ".join(self._functions)
            raise AttributeError(f".{self._kind} has no {name!r}; it has {known}.")

        def call(*args: Any, **options: Any) -> Expr:
            if function.endswith("trim"):  # without characters, white space
                if args in ((), (None,)) and not options.get("characters"):
                    return _Function(f"{function}_whitespace", (self._value,))
            elif function.endswith("_temporal"):
                options, args = {"unit": args[0] if args else options["unit"]}, ()
            elif function == "strftime" and "fmt" in options:
                options = {"format": options["fmt"]}
            elif function == "list_element":
                return _list_element(self._value, *args, **options)
            elif function == "list_slice":
                return _list_slice(self._value, *args, **options)
            return _Function(function, (self._value, *args), options)

        return call

    def __getitem__(self, key: Any) -> Expr:
        if self._kind == "struct":
            return _Function("struct_field", (self._value, key))
        if self._kind == "list" and isinstance(key, slice):
            return _list_slice(self._value, key.start, key.stop, key.step)
        if self._kind == "list":
            return _list_element(self._value, key)
        raise TypeError(f".{self._kind}[{key!r}]: only .list and .struct have elements.")


def _list_element(value: Expr, index: int) -> Expr:
    """One element of each list; null where a list is too short, for which Arrow has an error."""
    _check_place(index)
    part = _Function("list_slice", (value, index, index + 1), {"return_fixed_size_list": True})
    return _Function("list_element", (part, 0))


def _list_slice(
    value: Expr,
    start: int | None = None,
    stop: int | None = None,
    step: int | None = None,
    **options: Any,
) -> Expr:
    for place in (start, stop, step):
        if place is not None:
            _check_place(place)
    step = 1 if step is None else step
    return _Function("list_slice", (value, start or 0, stop, step), options)


def _check_place(place: Any) -> None:
    if place < 0:
        raise ValueError(f".list[…]: {place} counts from the end of a list; use 0 or more.")


def _map_keys(column: Any) -> Any:
    """The keys of each map, as a list."""
    return _map_part(column, "keys")


def _map_values(column: Any) -> Any:
    """The values of each map, as a list."""
    return _map_part(column, "items")


def _map_part(column: Any, part: str) -> Any:
    import pyarrow as pa

    found = []
    for maps in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if not pa.types.is_map(maps.type):
            raise TypeError(f"it is of type {maps.type}, no map")
        made = pa.ListArray.from_arrays(maps.offsets, getattr(maps, part))
        found.append(pa.compute.if_else(maps.is_valid(), made, None) if maps.null_count else made)
    return pa.chunked_array(found)


def _to_list(column: Any) -> Any:
    """Arrays of one size, also tensors, as lists."""
    import pyarrow as pa

    storage = column.type.storage_type if hasattr(column.type, "storage_type") else column.type
    if not pa.types.is_fixed_size_list(storage):
        raise TypeError(f"it is of type {column.type}, no array of one size")
    return column.cast(storage).cast(pa.list_(storage.value_type))


_ORDERS, _PLACEMENTS = ("ascending", "descending"), ("at_end", "at_start")


def _list_sort(column: Any, order: str = "ascending", null_placement: str = "at_end") -> Any:
    """Each list sorted; NaN is between the other values and the nulls, as in Arrow."""
    import pyarrow as pa

    for name, given, known in (
        ("order", order, _ORDERS),
        ("null_placement", null_placement, _PLACEMENTS),
    ):
        if given not in known:
            raise ValueError(f"{name}={given!r}: give {known[0]!r} or {known[1]!r}")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    made = [_sorted_lists(lists, order, null_placement) for lists in chunks]
    return pa.chunked_array(made, column.type)


def _sorted_lists(lists: Any, order: str, null_placement: str) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.list_flatten(lists)  # of null lists, nothing
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    # A key of its own for null and NaN, since Arrow's option for them is not the same in all
    # versions: 0 is a value, 1 is NaN, 2 is null.
    missing = values.is_null(nan_is_null=True).cast(pa.int8())
    if values.null_count:
        missing = pc.add(missing, values.is_null().cast(pa.int8()))
    keys = {"row": np.repeat(np.arange(len(lists)), lengths), "missing": missing, "value": values}
    last = "ascending" if null_placement == "at_end" else "descending"
    places = pc.sort_indices(
        pa.table(keys), sort_keys=[("row", "ascending"), ("missing", last), ("value", order)]
    )
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    mask = lists.is_null() if lists.null_count else None
    made = pa.LargeListArray.from_arrays(offsets, values.take(places), mask=mask)
    return made.cast(lists.type)


_OWN: dict[str, Callable[..., Any]] = {
    "_map_keys": _map_keys,
    "_map_values": _map_values,
    "_to_list": _to_list,
    "_list_sort": _list_sort,
}
"""Functions that ``pyarrow.compute`` does not have, by the names that expressions have."""


class _Column(Expr):
    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"col({name!r}): the name of a column is a string.")
        self.name = name

    def evaluate(self, table: pa.Table) -> Any:
        if self.name not in table.column_names:
            raise KeyError(
                f"col({self.name!r}): there is no such column; there are "
                f"{', '.join(table.column_names)}."
            )
        return table[self.name]

    def to_pyarrow(self) -> Any:
        import pyarrow.compute as pc

        return pc.field(self.name)

    def __repr__(self) -> str:
        return f"col({self.name!r})"


class _Literal(Expr):
    def __init__(self, value: Any) -> None:
        self.value = value

    def evaluate(self, table: pa.Table) -> Any:
        import pyarrow as pa

        return self.value if isinstance(self.value, pa.Scalar) else pa.scalar(self.value)

    def to_pyarrow(self) -> Any:
        import pyarrow.compute as pc

        return pc.scalar(self.value)

    def __repr__(self) -> str:
        return f"lit({self.value!r})"


class _Alias(Expr):
    def __init__(self, inner: Expr, name: str) -> None:
        self.inner, self.name = inner, name
        self.runs_user_code = inner.runs_user_code

    def evaluate(self, table: pa.Table) -> Any:
        return self.inner.evaluate(table)

    def to_pyarrow(self) -> Any:
        return self.inner.to_pyarrow()

    def __repr__(self) -> str:
        return f"{self.inner!r}.alias({self.name!r})"


class _Function(Expr):
    """A function of ``pyarrow.compute``, by its name."""

    def __init__(
        self, function: str, args: tuple[Any, ...], options: Mapping[str, Any] | None = None
    ) -> None:
        self.function, self.args, self.options = function, args, dict(options or {})
        self.runs_user_code = any(isinstance(a, Expr) and a.runs_user_code for a in args)

    def evaluate(self, table: pa.Table) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        values = [a.evaluate(table) if isinstance(a, Expr) else a for a in self.args]
        try:
            function = _OWN.get(self.function) or getattr(pc, self.function)
            return function(*values, **self.options)
        except (pa.ArrowNotImplementedError, TypeError, ValueError) as error:
            cause = str(error).partition("\n")[0]
            raise ValueError(f"{self!r} cannot be computed: {cause}") from error

    def to_pyarrow(self) -> Any:
        import pyarrow.compute as pc

        if self.function in _OWN:
            raise TypeError(f"{self!r} is computed in Python, which an Arrow expression cannot.")
        values = [a.to_pyarrow() if isinstance(a, Expr) else a for a in self.args]
        return getattr(pc, self.function)(*values, **self.options)

    def __repr__(self) -> str:
        return f"{self.function}({', '.join(map(repr, self.args))})"


class _Udf(Expr):
    """A user's function of columns, called with Arrow arrays."""

    runs_user_code = True

    def __init__(
        self, fn: Callable[..., Any], kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.fn, self.kind, self.args, self.kwargs = fn, kind, args, kwargs

    def evaluate(self, table: pa.Table) -> Any:
        import pyarrow as pa

        from lockstep.data.arrow.columns import one_array, to_arrow

        def value(given: Any) -> Any:
            if not isinstance(given, Expr):
                return given
            found = given.evaluate(table)
            return found.as_py() if isinstance(found, pa.Scalar) else one_array(found)

        args = [value(arg) for arg in self.args]
        made = to_arrow(self.fn(*args, **{k: value(v) for k, v in self.kwargs.items()}))
        if len(made) != table.num_rows:
            raise ValueError(
                f"{self!r} returned {len(made)} values for {table.num_rows} rows; return one a row."
            )
        return made if self.kind is None or made.type == self.kind else made.cast(self.kind)

    def to_pyarrow(self) -> Any:
        raise TypeError(f"{self!r} is a Python function, which Arrow cannot call.")

    def __repr__(self) -> str:
        from lockstep.data.arrow.formats import described

        return f"{described(self.fn)}({', '.join(map(repr, self.args))})"


class _Instance:
    """An object of a user's class, created in each process when it is first called."""

    def __init__(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = (cls, args, kwargs)
        self._object: Any = None
        self.__qualname__ = cls.__qualname__

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_object": None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._object is None:
            cls, given, named = self._given
            self._object = cls(*given, **named)
        return self._object(*args, **kwargs)


def _binary(function: str, left: Any, right: Any) -> Expr:
    sides = tuple(side if isinstance(side, Expr) else _Literal(side) for side in (left, right))
    return _Function(function, sides)


def _sum(left: Any, right: Any) -> Expr:
    """A sum; of text, one after the other."""
    if isinstance(left, str) or isinstance(right, str):
        sides = (s if isinstance(s, Expr) else _Literal(s) for s in (left, right))
        return _Function("binary_join_element_wise", (*sides, _Literal("")))
    return _binary("add", left, right)


def _remainder(left: Any, right: Any) -> Expr:
    whole = _Function("floor", (_binary("divide", left, right),))
    return _binary("subtract", left, _binary("multiply", whole, right))


def col(name: str) -> Expr:
    """The values of a column."""
    return _Column(name)


def lit(value: Any) -> Expr:
    """The same value for every row."""
    return _Literal(value)


def udf(return_dtype: DataType | Any = None) -> Callable[[Any], Callable[..., Any]]:
    """Make a function of Arrow arrays one of expressions: ``@udf(pa.int64())``.

    Args:
        return_dtype: the Arrow type of the values that it returns (or a ``DataType``); other
            values are cast to it. None: as they are returned.

    Of a class, ``Name(arguments)`` makes a function; its object is created in each worker.
    """
    kind = getattr(return_dtype, "arrow", return_dtype)

    def decorate(fn: Any) -> Callable[..., Any]:
        if not isinstance(fn, type):
            return lambda *args, **kwargs: _Udf(fn, kind, args, kwargs)

        def construct(*args: Any, **kwargs: Any) -> Callable[..., Expr]:
            made = _Instance(fn, args, kwargs)
            return lambda *columns, **named: _Udf(made, kind, columns, named)

        return construct

    return decorate


def pyarrow_udf(return_dtype: Any = None) -> Callable[[Any], Callable[..., Any]]:
    """Another name for ``udf``, whose functions get Arrow arrays anyway."""
    return udf(return_dtype)


class _PerRow(Expr):
    """A value for each row that does not depend on the row's columns."""

    runs_user_code = True

    def __init__(self, name: str, make: Callable[[int], Any]) -> None:
        self.call, self.make = name, make

    def evaluate(self, table: pa.Table) -> Any:
        import pyarrow as pa

        return pa.array(self.make(table.num_rows))

    def to_pyarrow(self) -> Any:
        raise TypeError(f"{self!r} is computed in Python, which an Arrow expression cannot.")

    def __repr__(self) -> str:
        return f"{self.call}()"


def random(*, seed: int | None = None, reseed_after_execution: bool = True) -> Expr:
    """A random number from 0 to 1 for each row, another one in each pass.

    Args:
        seed: must be None: rows of a block may be read in parts, by other workers after a restart,
            so numbers of a seed would not be the same again.
        reseed_after_execution: must be True.

    Raises:
        ValueError: a seed was given.
    """
    if seed is not None or not reseed_after_execution:
        raise ValueError(
            f"random(seed={seed!r}): numbers of a seed would depend on which rows are read "
            "together; hash a column in map_batches instead, or call random_shuffle(seed=…)."
        )
    return _PerRow("RANDOM", _random_numbers)


def _random_numbers(rows: int) -> Any:
    import numpy as np

    return np.random.default_rng().random(rows)


def uuid() -> Expr:
    """A random UUID for each row, as text, another one in each pass."""
    return _PerRow("UUID", _uuids)


def _uuids(rows: int) -> Any:
    from uuid import uuid4

    return [f"{uuid4()}" for _ in range(rows)]


def download(uri_column_name: str, *, filesystem: Any = None) -> Expr:
    """The bytes of the files that a column names, on any filesystem.

    Args:
        uri_column_name: the column with paths or URIs; null where it is null.
        filesystem: the Arrow or fsspec filesystem of the paths.
    """
    from functools import partial

    return _Udf(partial(_downloaded, filesystem=filesystem), None, (col(uri_column_name),), {})


def _downloaded(uris: Any, filesystem: Any) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    import pyarrow as pa

    from lockstep.storage import open_storage

    def content(uri: str | None) -> bytes | None:
        if uri is None:
            return None
        place = open_storage(uri, filesystem)
        with place.filesystem.open_input_stream(place.root, compression=None) as source:
            return bytes(source.read())

    with ThreadPoolExecutor(_DOWNLOADS, "lockstep-download") as pool:
        return pa.array(list(pool.map(content, uris.to_pylist())), pa.binary())


_DOWNLOADS = 16
"""How many files are read at once."""
