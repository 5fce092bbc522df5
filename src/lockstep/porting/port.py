"""Rewrites one file with LibCST, which keeps comments and layout.

    import ray                     import lockstep
    ray.train.report({…})          lockstep.train.report({…})
    from ray.air import RunConfig  from lockstep.train import RunConfig

A name is rewritten only if lockstep has it. What it does not have stays as it is, with a remark;
a file that has both kinds imports both.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.porting.names import (
    Missing,
    Remark,
    accepts,
    find,
    find_module,
    needs_ray_core,
    today,
)
from lockstep.ray_names import home_of

if TYPE_CHECKING:
    import libcst

__all__ = ["Ported", "port_source"]

_ENGINE = "needs Ray Core: install Ray, and call lockstep.init(engine='ray') before it"
_VARIABLE = "lockstep does not read this variable"


class Ported(NamedTuple):
    """A file after the rewriting."""

    source: bytes
    remarks: Sequence[Remark]
    """What a person has to look at."""


def port_source(source: bytes) -> Ported:
    """Rewrite one file.

    Raises:
        ImportError: LibCST is not installed.
        ValueError: this is no Python that LibCST can read; names the line.
    """
    try:
        import libcst
        from libcst import metadata
    except ImportError as error:
        raise ImportError(
            f"lockstep port needs LibCST ({error}): pip install 'lockstep-train[port]'"
        ) from error
    if b"ray" not in source.lower():
        return Ported(source, [])
    try:
        wrapper = metadata.MetadataWrapper(libcst.parse_module(source))
    except libcst.ParserSyntaxError as error:
        raise ValueError(f"line {error.raw_line}: {error.message}") from None
    survey = _survey(wrapper)
    if not survey.replaced and not survey.split:
        return Ported(source, sorted(set(survey.remarks)))
    return Ported(_rewritten(wrapper.module, survey).bytes, sorted(set(survey.remarks)))


class _Survey(NamedTuple):
    """What is to change."""

    replaced: dict[libcst.CSTNode, libcst.CSTNode]
    """A node of the file → what stands there afterwards."""
    split: dict[libcst.CSTNode, tuple[Any, Any]]
    """An import statement → one of lockstep and one of Ray."""
    remarks: list[Remark]


def _survey(wrapper: Any) -> _Survey:
    """Look at every import of ``ray`` and every use of what it imports."""
    import libcst as cst
    from libcst import metadata
    from libcst.helpers import get_full_name_for_node

    scopes = wrapper.resolve(metadata.ScopeProvider)
    positions = wrapper.resolve(metadata.PositionProvider)
    parents = wrapper.resolve(metadata.ParentNodeProvider)
    survey = _Survey({}, {}, [])
    bound: dict[tuple[Any, str], Any] = {}
    """(scope, local name) → the object of lockstep that it is after the rewriting."""
    imports: dict[Any, set[str]] = {}
    """A statement → the names that it gives to ``ray``, or to something in it."""
    stay: set[Any] = set()
    move: set[Any] = set()

    def remark(node: Any, name: str, reason: str) -> None:
        survey.remarks.append(Remark(positions[node].start.line, name, reason))

    def is_ray(scope: Any, name: str) -> bool:
        """Whether a name means the module ``ray`` there."""
        return any(
            name in imports.get(getattr(assignment, "node", None), ())
            for assignment in (scope[name] if scope is not None else ())
        )

    class Imports(cst.CSTVisitor):
        def visit_Import(self, node: cst.Import) -> None:
            for alias in node.names:
                root, _ = _target(alias)
                if root == "ray":
                    imports.setdefault(node, set()).add(alias.evaluated_alias or root)

        def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
            name = get_full_name_for_node(node.module) if node.module else ""
            if node.relative or (name or "").partition(".")[0] != "ray":
                return
            path = home_of((name or "").partition(".")[2])
            if isinstance(node.names, cst.ImportStar):
                self._star(node, path)
                return
            good, bad = [], []
            for alias in node.names:
                wanted = get_full_name_for_node(alias.name) or ""
                full = f"ray.{path}.{wanted}".replace("..", ".")
                try:
                    value = find(path, wanted)
                except Missing as error:
                    remark(node, full, str(error))
                    bad.append(alias)
                    continue
                if needs_ray_core(path, wanted):
                    remark(node, full, _ENGINE)
                good.append(alias)
                local = alias.evaluated_alias or wanted
                bound[scopes.get(node), local] = value
            if good:
                new = today(path, [get_full_name_for_node(alias.name) or "" for alias in good])
                moved = node.with_changes(module=_dotted("lockstep", new))
                if bad:
                    survey.split[node] = (
                        moved.with_changes(names=_list(good)),
                        node.with_changes(names=_list(bad)),
                    )
                else:
                    survey.replaced[node] = moved

        def _star(self, node: cst.ImportFrom, path: str) -> None:
            try:
                find_module(path)
            except Missing as error:
                remark(node, f"ray.{path}.*", str(error))
            else:
                survey.replaced[node] = node.with_changes(module=_dotted("lockstep", path))

    class Uses(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            scope = scopes.get(node)
            if not is_ray(scope, node.value) or isinstance(parents[node], cst.AsName):
                return
            if isinstance(parents[node], (cst.ImportAlias, cst.Arg)) and _is_target(
                parents[node], node
            ):
                return
            if isinstance(parents[node], cst.Attribute) and parents[node].attr is node:
                return
            start = self._aliased(node.value)
            chain, value, reason = self._follow(node, start)
            renamed = node.value == "ray"
            if reason is not None:
                remark(node, "ray." + ".".join(chain), reason)
                stay.add(node)
                return
            if chain and needs_ray_core("", chain[0]):
                remark(node, "ray." + chain[0], _ENGINE)
            move.add(node)
            if renamed:
                survey.replaced[node] = node.with_changes(value="lockstep")
            self._check_call(value)

        def visit_Call(self, node: cst.Call) -> None:
            if isinstance(node.func, cst.Name):
                scope = scopes.get(node)
                while scope is not None:
                    if (scope, node.func.value) in bound:
                        self._check(node, bound[scope, node.func.value])
                        return
                    scope = getattr(scope, "parent", None) if scope.parent is not scope else None

        def visit_SimpleString(self, node: cst.SimpleString) -> None:
            value = node.evaluated_value
            if isinstance(value, str) and value.startswith("RAY_") and value.isupper():
                remark(node, value, _VARIABLE)

        def _aliased(self, name: str) -> list[str]:
            """What a name of ``import ray.tune as name`` is, below ``ray``."""
            for node in imports:
                for alias in node.names:
                    if alias.asname is not None and alias.evaluated_alias == name:
                        return [part for part in _target(alias)[1].split(".") if part]
            return []

        def _follow(self, node: cst.Name, start: list[str]) -> tuple[list[str], Any, str | None]:
            """The attributes after ``ray``, as far as they are modules' names; what they are."""
            chain = list(start)
            self._whole: Any = node
            if not _has_module(".".join(chain)):
                return chain, None, f"lockstep has no module {'.'.join(chain)}"
            value: Any = find_module(".".join(chain))
            here: Any = node
            while isinstance(parents[here], cst.Attribute) and parents[here].value is here:
                here = parents[here]
                name = here.attr.value
                try:
                    value = find(".".join(chain), name)
                except Missing as error:
                    return [*chain, name], None, str(error)
                chain.append(name)
                if not isinstance(value, ModuleType):
                    break
            self._whole = here
            return chain, value, None

        def _check_call(self, value: Any) -> None:
            parent = parents[self._whole]
            if isinstance(parent, cst.Call) and parent.func is self._whole:
                self._check(parent, value)

        def _check(self, call: cst.Call, value: Any) -> None:
            keywords = [arg.keyword.value for arg in call.args if arg.keyword is not None]
            if value is None or not keywords:
                return
            for keyword in accepts(value, keywords):
                name = getattr(value, "__name__", "the function")
                remark(call, f"{name}({keyword}=…)", "lockstep has no such argument")

    wrapper.module.visit(Imports())
    wrapper.module.visit(Uses())
    _plan_imports(imports, bool(stay), bool(move), survey, remark)
    return survey


def _plan_imports(
    imports: dict[Any, set[str]], stay: bool, move: bool, survey: _Survey, remark: Any
) -> None:
    """``import ray``: of lockstep, of Ray, or one of each."""
    aliases = {node: [(alias, *_target(alias)) for alias in node.names] for node in imports}
    # Whether a statement that stays as it is gives the file its ``ray``.
    has_ray = any(
        root == "ray" and alias.asname is None and (not path or not _has_module(path))
        for targets in aliases.values()
        for alias, root, path in targets
    )
    for node, targets in aliases.items():
        mine, rays = [], []
        for alias, root, path in targets:
            if root != "ray":
                mine.append(alias)
                continue
            renamed = alias.with_changes(name=_dotted("lockstep", path))
            if not _has_module(path):
                remark(node, f"ray.{path}", f"lockstep has no module {path}")
                rays.append(alias)
            elif alias.asname is not None or path:
                mine.append(renamed)
                if stay and alias.asname is None and not has_ray:
                    has_ray = True
                    rays.append(alias.with_changes(name=_dotted("ray", "")))
            else:
                if stay:
                    rays.append(alias)
                if move or not stay:
                    mine.append(renamed)
        if not any(_target(alias)[0] == "lockstep" for alias in mine):
            continue
        if rays:
            pair = node.with_changes(names=_list(mine)), node.with_changes(names=_list(rays))
            survey.split[node] = pair
        else:
            survey.replaced[node] = node.with_changes(names=mine)


def _target(alias: Any) -> tuple[str, str]:
    """The root and the path below it of what ``import`` names."""
    from libcst.helpers import get_full_name_for_node

    root, _, path = (get_full_name_for_node(alias.name) or "").partition(".")
    return root, path


def _has_module(path: str) -> bool:
    try:
        find_module(path)
    except Missing:
        return False
    return True


def _is_target(parent: Any, node: Any) -> bool:
    """Whether the name is one that a statement gives, not one that it reads."""
    import libcst as cst

    if isinstance(parent, cst.ImportAlias):
        return True
    return isinstance(parent, cst.Arg) and parent.keyword is node


def _dotted(root: str, path: str) -> Any:
    import libcst as cst

    name: Any = cst.Name(root)
    for part in filter(None, path.split(".")):
        name = cst.Attribute(name, cst.Name(part))
    return name


def _list(aliases: Sequence[Any]) -> list[Any]:
    """The last of a list of names has no comma."""
    import libcst as cst

    return [
        *aliases[:-1],
        aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT),
    ]


def _rewritten(module: Any, survey: _Survey) -> Any:
    import libcst as cst

    class Rewriter(cst.CSTTransformer):
        def on_leave(self, original: Any, updated: Any) -> Any:
            if isinstance(original, cst.SimpleStatementLine) and len(original.body) == 1:
                pair = survey.split.get(original.body[0])
                if pair is not None:
                    first = updated.with_changes(body=[pair[0]])
                    second = cst.SimpleStatementLine([pair[1]])
                    return cst.FlattenSentinel([first, second])
            return survey.replaced.get(original, updated)

        def on_visit(self, node: Any) -> bool:
            return node not in survey.replaced

    return module.visit(Rewriter())
