"""Filters given as text or lists, turned into Arrow expressions."""

from __future__ import annotations

import ast
import operator
from functools import reduce
from itertools import pairwise
from typing import Any

__all__ = ["as_expression", "by_position", "from_filters"]


def as_expression(value: Any) -> Any:
    """An Arrow expression, given as one or as text such as ``"x > 3 and y == 'a'"``.

    Raises:
        TypeError: the value is neither.
        ValueError: the text contains something other than comparisons.
    """
    import pyarrow.compute as pc

    if isinstance(value, pc.Expression):
        return value
    if hasattr(value, "to_pyarrow"):  # of lockstep.data.expressions, which is a layer above
        return value.to_pyarrow()
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a filter; give text or a pyarrow.compute.Expression.")
    try:
        return _build(ast.parse(value.strip(), mode="eval").body, value)
    except SyntaxError as error:
        raise ValueError(f"The filter {value!r} cannot be read: {error.msg}.") from error


def by_position(expression: Any) -> bool:
    """Whether an expression names columns by number, so that its meaning depends on the table."""
    return "FieldPath(" in str(expression)


def _build(node: ast.expr, text: str) -> Any:
    import pyarrow.compute as pc

    if isinstance(node, ast.Name):
        return pc.field(node.id)
    if isinstance(node, ast.Constant):
        return pc.scalar(node.value)
    if isinstance(node, ast.UnaryOp):
        value = _build(node.operand, text)
        if isinstance(node.op, ast.Not):
            return ~value
        if isinstance(node.op, ast.USub):
            if isinstance(node.operand, ast.Constant):
                return pc.scalar(ast.literal_eval(node))
            return pc.negate(value)
    if isinstance(node, ast.BoolOp):
        combine = operator.and_ if isinstance(node.op, ast.And) else operator.or_
        return reduce(combine, [_build(value, text) for value in node.values])
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _build(node.left, text), _build(node.right, text)
        return _ARITHMETIC[type(node.op)](left, right)
    if isinstance(node, ast.Compare):
        return _compared(node, text)
    raise ValueError(
        f"The filter {text!r} has {ast.unparse(node)!r} in it, which cannot be done here; use "
        "column names, constants, comparisons, and, or, not, in, + - * /."
    )


def _compared(node: ast.Compare, text: str) -> Any:
    # ``a < b < c`` is ``a < b and b < c``.
    sides = pairwise([node.left, *node.comparators])
    parts = [
        _comparison(left, kind, right, text)
        for kind, (left, right) in zip(node.ops, sides, strict=True)
    ]
    return reduce(operator.and_, parts)


def _comparison(left: ast.expr, kind: ast.cmpop, right: ast.expr, text: str) -> Any:
    if isinstance(kind, (ast.In, ast.NotIn)):
        found = _build(left, text).isin(list(ast.literal_eval(right)))
        return found if isinstance(kind, ast.In) else ~found
    if isinstance(kind, (ast.Is, ast.IsNot)):
        null = _build(left, text).is_null()
        return null if isinstance(kind, ast.Is) else ~null
    return _COMPARISONS[type(kind)](_build(left, text), _build(right, text))


_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def from_filters(filters: Any) -> Any:
    """An expression from the forms of ``read_parquet(filters=…)``: also Arrow's lists of tuples."""
    if isinstance(filters, (list, tuple)):
        import pyarrow.parquet as pq

        return pq.filters_to_expression(filters)
    return as_expression(filters)
