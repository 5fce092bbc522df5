"""Filters as text or lists, turned into Arrow's own expressions."""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["as_expression", "by_position", "from_filters"]


def as_expression(value: Any) -> Any:
    """An Arrow expression from one, or from text such as ``"x > 3 and y == 'a'"``.

    Raises:
        TypeError: it is neither.
        ValueError: the text has something in it that is not a comparison.
    """
    import pyarrow.compute as pc

    if isinstance(value, pc.Expression):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a filter; give text or a pyarrow.compute.Expression.")
    try:
        return _build(ast.parse(value.strip(), mode="eval").body, value)
    except SyntaxError as error:
        raise ValueError(f"The filter {value!r} cannot be read: {error.msg}.") from error


def by_position(expression: Any) -> bool:
    """Whether an expression has columns by number in it: what they are depends on the table."""
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
        values = [_build(value, text) for value in node.values]
        whole = values[0]
        for value in values[1:]:
            whole = whole & value if isinstance(node.op, ast.And) else whole | value
        return whole
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
    whole = None
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        part = _comparison(left, operator, right, text)
        whole = part if whole is None else whole & part
        left = right
    return whole


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr, text: str) -> Any:
    if isinstance(operator, (ast.In, ast.NotIn)):
        found = _build(left, text).isin(list(ast.literal_eval(right)))
        return found if isinstance(operator, ast.In) else ~found
    if isinstance(operator, (ast.Is, ast.IsNot)):
        null = _build(left, text).is_null()
        return null if isinstance(operator, ast.Is) else ~null
    return _COMPARISONS[type(operator)](_build(left, text), _build(right, text))


_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def from_filters(filters: Any) -> Any:
    """An expression from what ``read_parquet(filters=…)`` takes: one, text, or lists of tuples."""
    if isinstance(filters, (list, tuple)):
        import pyarrow.parquet as pq

        return pq.filters_to_expression(filters)
    return as_expression(filters)
