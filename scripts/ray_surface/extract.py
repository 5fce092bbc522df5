"""Write down the public names and arguments of a Ray version, one a line, from its source.

    python scripts/ray_surface/extract.py DIRECTORY VERSION    # DIRECTORY/ray is Ray's package

Nothing of Ray is imported: any version can be read on any Python. ``scripts/compatibility.py``
compares lockstep with what these files say.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent

MODULES = (
    "train",
    "train.collective",
    "train.horovod",
    "train.huggingface",
    "train.huggingface.accelerate",
    "train.huggingface.transformers",
    "train.lightgbm",
    "train.lightning",
    "train.mosaic",
    "train.rl",
    "train.sklearn",
    "train.tensorflow",
    "train.tensorflow.keras",
    "train.torch",
    "train.torch.xla",
    "train.v2.jax",
    "train.xgboost",
    "air",
    "air.callbacks.comet",
    "air.callbacks.keras",
    "air.callbacks.mlflow",
    "air.callbacks.wandb",
    "air.checkpoint",
    "air.config",
    "air.integrations.comet",
    "air.integrations.keras",
    "air.integrations.mlflow",
    "air.integrations.wandb",
    "air.result",
    "air.session",
    "tune",
    "tune.callback",
    "tune.integration.keras",
    "tune.integration.lightgbm",
    "tune.integration.mlflow",
    "tune.integration.pytorch_lightning",
    "tune.integration.ray_train",
    "tune.integration.wandb",
    "tune.integration.xgboost",
    "tune.logger",
    "tune.logger.aim",
    "tune.schedulers",
    "tune.schedulers.pb2",
    "tune.search",
    "tune.search.ax",
    "tune.search.bayesopt",
    "tune.search.bohb",
    "tune.search.hebo",
    "tune.search.hyperopt",
    "tune.search.nevergrad",
    "tune.search.optuna",
    "tune.search.zoopt",
    "tune.stopper",
    "tune.tuner",
    "tune.utils",
    "data",
    "data.aggregate",
    "data.collate_fn",
    "data.context",
    "data.datatype",
    "data.expressions",
    "data.preprocessor",
    "data.preprocessors",
    "runtime_env",
)
"""The documented paths below ``ray``. A version that does not have one is read without it."""

OF_CORE = (
    "available_resources",
    "cluster_resources",
    "get",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "nodes",
    "put",
    "shutdown",
    "wait",
)
"""What scripts for Train, Tune and Data use of ``ray`` itself, besides tasks and actors."""


class Target(NamedTuple):
    """Where a name is defined: a module, and the name there."""

    module: str
    name: str


class Surface:
    """The source tree of one version."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listed: set[ast.AST] = set()
        """The classes whose members are listed under a name of theirs."""

    def lines(self) -> list[str]:
        """Every public name with its arguments, sorted."""
        names = [Target("ray", name) for name in OF_CORE]
        for module in (f"ray.{path}" for path in MODULES):
            if self.tree(module) is not None:
                names += [Target(module, name) for name in sorted(self._exported(module))]
        public = {node for target in names for node, _ in self.definitions(target)}
        return sorted({line for target in names for line in self._described(target, public)})

    @cache  # noqa: B019
    def tree(self, module: str) -> ast.Module | None:
        """The module's syntax; None where this version does not have it."""
        path = self.root.joinpath(*module.split("."))
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.exists():
                return ast.parse(file.read_text(encoding="utf-8"))
        return None

    def _exported(self, module: str) -> set[str]:
        tree = self.tree(module)
        assert tree is not None
        names: set[str] = set()
        for node in ast.walk(tree):
            value = None
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and target.id == "__all__":
                    value = node.value
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "__all__.extend":
                value = node.args[0]
            if isinstance(value, (ast.List, ast.Tuple)):
                names |= {str(e.value) for e in value.elts if isinstance(e, ast.Constant)}
        if names:
            return {name for name in names if not name.startswith("_")}
        is_package = self.root.joinpath(*module.split("."), "__init__.py").exists()
        return {
            name
            for name, targets in self.bindings(module).items()
            if not name.startswith("_")
            and (is_package or any(target.module == module for target in targets))
            and any(
                _marked(node, "PublicAPI") for node, _ in self.definitions(Target(module, name))
            )
        }

    @cache  # noqa: B019
    def bindings(self, module: str) -> dict[str, list[Target]]:
        """The names of a module's body, also in ``if`` and ``try``, and where each is from."""
        tree = self.tree(module)
        found: dict[str, list[Target]] = {}
        if tree is None:
            return found
        package = module.split(".")
        is_package = self.root.joinpath(*package, "__init__.py").exists()
        pending: list[ast.AST] = list(tree.body)
        while pending:
            node = pending.pop(0)
            if isinstance(node, (ast.If, ast.Try)):
                if "TYPE_CHECKING" not in ast.unparse(getattr(node, "test", ast.Constant(0))):
                    pending += [*node.body, *node.orelse]
                continue
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found.setdefault(node.name, []).append(Target(module, node.name))
            elif isinstance(node, ast.ImportFrom):
                cut = len(package) - node.level + (1 if is_package else 0)
                base = package[:cut] if node.level else []
                origin = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    if alias.name == "*":
                        continue
                    target = Target(origin, alias.name)
                    found.setdefault(alias.asname or alias.name, []).append(target)
        return found

    def definitions(self, target: Target, depth: int = 0) -> list[tuple[ast.AST, str]]:
        """The classes and functions that a name is, each with its module."""
        if depth > 8:
            return []
        found: list[tuple[ast.AST, str]] = []
        for origin in self.bindings(target.module).get(target.name, []):
            if origin == target:
                tree = self.tree(target.module)
                assert tree is not None
                found += [
                    (node, target.module)
                    for node in ast.walk(tree)
                    if isinstance(node, (ast.ClassDef, ast.FunctionDef))
                    and node.name == target.name
                    and node.col_offset in (0, 4)
                ][:1]
            elif origin.module.startswith("ray"):
                found += self.definitions(origin, depth + 1)
        return found

    def _described(self, target: Target, public: set[ast.AST]) -> list[str]:
        """A name with its arguments; a class's members once, and where they are defined."""
        path = ".".join(target)
        definitions = self.definitions(target)
        if not definitions:
            return [path]
        arguments: dict[str, None] = {}
        members: dict[str, dict[str, None] | None] = {}
        for node, module in definitions:
            if isinstance(node, ast.ClassDef):
                arguments.update(dict.fromkeys(self._constructor(node, module)))
                own = {}
                if node not in self._listed and not _marked(node, "DeveloperAPI"):
                    own = self._members(node, module, public)
                self._listed.add(node)
                for name, given in own.items():
                    before = members.get(name)
                    members[name] = None if given is None else {**(before or {}), **given}
            elif isinstance(node, ast.FunctionDef):
                arguments.update(dict.fromkeys(_parameters(node)))
        lines = [f"{path}({', '.join(arguments)})"]
        for name, given in members.items():
            shown = "" if given is None else f"({', '.join(given)})"
            lines.append(f"{path}.{name}{shown}")
        return lines

    def _bases(self, node: ast.ClassDef, module: str) -> list[tuple[ast.ClassDef, str]]:
        found = []
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0]
            for inner, where in self.definitions(Target(module, name)):
                if isinstance(inner, ast.ClassDef):
                    found.append((inner, where))
        return found

    def _constructor(self, node: ast.ClassDef, module: str, depth: int = 0) -> list[str]:
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                return _parameters(item, bound=True)
        inherited = [
            self._constructor(base, where, depth + 1)
            for base, where in self._bases(node, module)
            if depth < 8
        ]
        names = inherited[0] if inherited else []
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            fields = [
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and "ClassVar" not in ast.unparse(item.annotation)
                and not item.target.id.startswith("_")
            ]
            return list(dict.fromkeys([*names, *fields]))
        return names

    def _members(
        self, node: ast.ClassDef, module: str, public: set[ast.AST], depth: int = 0
    ) -> dict[str, dict[str, None] | None]:
        """The public methods and their arguments, less those of a public base; None: a property."""
        found: dict[str, dict[str, None] | None] = {}
        elsewhere: set[str] = set()
        if depth < 8:
            for base, where in reversed(self._bases(node, module)):
                members = self._members(base, where, public, depth + 1)
                if base in public or depth == 0:
                    elsewhere |= set(members)
                else:
                    found.update(members)
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
                if item.name in elsewhere or _marked(item, "DeveloperAPI", "Deprecated"):
                    continue
                decorators = [ast.unparse(decorator) for decorator in item.decorator_list]
                if any("property" in text or ".setter" in text for text in decorators):
                    found[item.name] = None
                else:
                    static = "staticmethod" in decorators
                    found[item.name] = dict.fromkeys(_parameters(item, bound=not static))
        return found


def _marked(node: ast.AST, *marks: str) -> bool:
    """Whether a class or a function has one of Ray's marks of how stable it is."""
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(each).partition("(")[0] in marks for each in decorators)


def _parameters(node: ast.FunctionDef, bound: bool = False) -> list[str]:
    """The names that a caller can give; without what begins with an underscore."""
    positional = [*node.args.posonlyargs, *node.args.args][1 if bound else 0 :]
    names = [argument.arg for argument in [*positional, *node.args.kwonlyargs]]
    return [name for name in names if not name.startswith("_")]


if __name__ == "__main__":
    directory, version = sys.argv[1:]
    file = HERE / f"{version}.txt"
    lines = Surface(Path(directory)).lines()
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{file}: {len(lines)} lines")
