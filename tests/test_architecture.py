"""The rules of the code base that no other tool checks: layers, laziness, exports, environment."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from lockstep import run_layout
from tests.repository import SRC

ROOT = SRC / "lockstep"

# A module may import its own layer and those before it.
LAYERS = [
    "checks",
    "hooks",
    "redact",
    "jobs",
    "missing",
    "run_layout",
    "errors",
    "traceback_record",
    "error_record",
    "settings",
    "ray_names",
    "runtime",
    "config",
    "metrics",
    "retention",
    "storage",
    "state",
    "checkpoint",
    "journal",
    "ledger",
    "result",
    "callback",
    "warm",
    "engine",
    "core",
    "cloudpickle",
    "runtime_env",
    "runtime_context",
    "types",
    "util",
    "console",
    "trackers",
    "data",
    "train",
    "tune",
    "air",
    "testing",
    "porting",
    "observe",
    "ui",
    "cli",
    "exceptions",
]

# The same inside a package: its rooms and its own modules, bottom up.
INNER_LAYERS = {
    "data": [
        "arrow",
        "datatype",
        "schema",
        "expressions",
        "collate_fn",
        "compat",
        "context",
        "sources",
        "processes",
        "plan",
        "iterate",
        "config",
        "aggregate",
        "methods",
        "dataset",
        "preprocessors",
        "preprocessor",
        "create",
        "read",
        "datasource",
        "__init__",
    ],
    "train": [
        "constants",
        "error",
        "predictor",
        "batch_predictor",
        "sklearn",
        "mosaic",
        "rl",
        "context",
        "validation",
        "protocol",
        "backend",
        "meeting",
        "ray_backend",
        "function",
        "reduction",
        "streams",
        "datasets",
        "record",
        "driver",
        "worker",
        "api",
        "collective",
        "training_loop",
        "trainer",
        "base_trainer",
        "data_parallel_trainer",
        "boosting",
        "xgboost",
        "lightgbm",
        "tracking",
        "torch",
        "tensorflow",
        "horovod",
        "jax",
        "lightning",
        "huggingface",
        "state",
        "callbacks",
        "v2",
        "__init__",
    ],
    "tune": [
        "parameters",
        "trainable",
        "search",
        "stopper",
        "schedulers",
        "tune_config",
        "experiment",
        "plots",
        "result_grid",
        "reporting",
        "execution",
        "registry",
        "tuner",
        "compat",
        "analysis",
        "legacy",
        "callback",
        "error",
        "progress_reporter",
        "syncer",
        "logger",
        "integration",
        "utils",
        "suggest",
        "__init__",
    ],
}

HEAVY = {
    "accelerate",
    "comet_ml",
    "horovod",
    "libcst",
    "lightning",
    "mlflow",
    "numpy",
    "optuna",
    "pandas",
    "plotly",
    "pyarrow",
    "pytorch_lightning",
    "ray",
    "rich",
    "tensorboard",
    "tensorboardX",
    "tensorflow",
    "torch",
    "transformers",
    "wandb",
}

# Modules made to be imported when a class of a framework is first needed: it is their base.
BASED_ON_A_FRAMEWORK = {
    "train/lightning/on_lightning.py",
    "train/lightning/on_pytorch_lightning.py",
}

# Files some of whose names are made on first use, from the framework named here.
MADE_FROM = {
    "train/lightning/__init__.py": "lightning",
    "train/huggingface/transformers.py": "transformers",
}

# Files that write the environment of the worker they run in (and, in process, put it back).
ENVIRONMENT_WRITERS = {
    "testing/engine_entries.py",
    "testing/engines.py",
    "engine/agent.py",  # undoes what Ray has set for the agent itself
    "engine/forkserver.py",
    "engine/inprocess.py",
    "ray_names.py",  # says so to its workers
    "trackers/mlflow_client.py",
    "train/horovod/backend.py",
    "train/tensorflow/backend.py",
    "train/torch/backend.py",
    "train/worker/torch_device.py",
    "train/torch/reproducibility.py",
    "warm/variables.py",  # records what preloaded modules read
    "warm/caller.py",  # gives a forked process its caller's
    "warm/effects.py",  # undoes what preloaded modules set
    "warm/preloaded.py",  # notices what a script sets before it imports
}

# Files that open a port: each for a framework that has no other way to connect its processes; one
# for the nodes of a cluster and one for the ranks of such a framework, which must prove a secret;
# the dashboard, with a token; and the command that checks, for a moment and on loopback, whether
# frameworks could. The warm server has a socket in a directory of the user's own, and
# asks the kernel who connects.
LISTENERS = {
    "cli/doctor.py",
    "engine/links.py",
    "engine/warm_server.py",
    "train/horovod/backend.py",
    "train/jax/config.py",
    "train/lightgbm/config.py",
    "train/meeting.py",
    "train/tensorflow/backend.py",
    "train/torch/backend.py",
    "ui/server.py",
}

FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), file)


def module_name(file: str) -> str:
    parts = ("lockstep", *Path(file).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def nodes(tree: ast.AST, inside_functions: bool = True) -> Iterator[ast.AST]:
    """Every node that can run: all but the bodies of ``if TYPE_CHECKING``."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and is_type_checking(node):
            pending.extend(node.orelse)
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending.extend(ast.iter_child_nodes(node))


def imports(file: str, inside_functions: bool = True) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import, ``from a import b`` as ``a.b``."""
    package = module_name(file).split(".")
    if not file.endswith("__init__.py"):
        package = package[:-1]
    for node in nodes(tree_of(file), inside_functions):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"


def layer_of(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "lockstep" and len(parts) > 1 else None


def exported(file: str) -> list[str] | None:
    """The module's ``__all__``, None where it has no literal one."""
    for node in tree_of(file).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id == "__all__" and node.value is not None:
                return list(ast.literal_eval(node.value))
    return None


def test_imports_point_downward() -> None:
    wrong = []
    for file in FILES:
        own = layer_of(module_name(file))
        if own is None or file == "__main__.py":
            continue  # the roof: it may name every layer
        assert own in LAYERS, f"{file} is in no layer: add {own!r} to LAYERS and to the design"
        wrong += [
            f"{file}:{line} imports {name}"
            for line, name in imports(file)
            if (layer := layer_of(name)) in LAYERS and LAYERS.index(layer) > LAYERS.index(own)
        ]
    assert not wrong


def inner_imports(package: str) -> dict[str, list[tuple[int, str]]]:
    """Each module of a package: (line, module) of what it imports from the same package."""
    modules = {module_name(file): file for file in FILES if Path(file).parts[0] == package}
    found: dict[str, list[tuple[int, str]]] = {}
    for file in modules.values():
        found[file] = []
        for line, name in imports(file):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name:
                found[file].append((line, modules[name]))
    return found


@pytest.mark.parametrize("package", INNER_LAYERS)
def test_layers_inside(package: str) -> None:
    layers = INNER_LAYERS[package]

    def layer(file: str) -> int:
        name = Path(file).parts[1].removesuffix(".py")
        assert name in layers, f"{file} is in no layer: add {name!r} to INNER_LAYERS[{package!r}]"
        return layers.index(name)

    found = inner_imports(package)
    wrong = [
        f"{file}:{line} imports {other}"
        for file, others in found.items()
        for line, other in others
        if layer(other) > layer(file)
    ]
    assert not wrong
    try:
        TopologicalSorter(
            {file: {other for _, other in others} - {file} for file, others in found.items()}
        ).prepare()
    except CycleError as error:
        pytest.fail("imports in a cycle: " + " → ".join(reversed(error.args[1])))


@pytest.mark.parametrize(("side", "other"), [("driver", "worker"), ("worker", "driver")])
def test_the_driver_s_side_and_the_worker_s_do_not_import_each_other(side: str, other: str) -> None:
    wrong = [
        f"{file}:{line} imports {name}"
        for file in FILES
        if file.startswith(f"train/{side}/")
        for line, name in imports(file)
        if name.startswith(f"lockstep.train.{other}.")
    ]
    assert not wrong, "what both sides use belongs beside them, in train/"


def test_only_one_file_imports_ray() -> None:
    wrong = [
        f"{file}:{line}"
        for file in FILES
        for line, name in imports(file)
        if name.split(".")[0] == "ray" and file != "engine/ray.py"
    ]
    assert not wrong


def test_heavy_modules_are_imported_inside_functions() -> None:
    wrong = [
        f"{file}:{line} imports {name}"
        for file in FILES
        if file not in BASED_ON_A_FRAMEWORK
        for line, name in imports(file, inside_functions=False)
        if name.split(".")[0] in HEAVY
    ]
    assert not wrong


def test_the_environment_is_read_in_settings_only() -> None:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    wrong = [
        f"{file}:{node.lineno}"
        for file in FILES
        if file != "settings.py" and file not in ENVIRONMENT_WRITERS
        for node in nodes(tree_of(file))
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.Name) and node.id in names)
    ]
    assert not wrong, "ask lockstep.settings instead"


def test_lockstep_variables_are_named_in_settings_only() -> None:
    wrong = [
        f"{file}:{node.lineno} names {node.value}"
        for file in FILES
        if file != "settings.py"
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch("LOCKSTEP_[A-Z0-9_]+", node.value)
    ]
    assert not wrong


def test_a_run_s_files_are_named_in_run_layout_only() -> None:
    names = {
        str(value)
        for name, value in vars(run_layout).items()
        if name.isupper() and isinstance(value, str) and len(value) > 4
    }
    wrong = [
        f"{file}:{node.lineno} names {node.value}"
        for file in FILES
        if file != "run_layout.py"
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not wrong, "import the name from lockstep.run_layout"


def test_engines_are_distinguished_by_properties_only() -> None:
    def names_an_engine(node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return node.value == "inprocess"
        if not isinstance(node, ast.Attribute) or node.attr != "name":
            return False
        return "engine" in ast.unparse(node.value)

    wrong = [
        f"{file}:{node.lineno}"
        for file in FILES
        if not file.startswith("engine/")
        for node in nodes(tree_of(file))
        if isinstance(node, ast.Compare)
        and any(map(names_an_engine, (node.left, *node.comparators)))
    ]
    assert not wrong, "ask the engine's properties instead (lockstep.engine.base)"


def test_nothing_is_deep() -> None:
    # Ray's own paths, of which there is nothing but re-exports, may be.
    ours = [file for file in FILES if not file.startswith("train/v2/")]
    assert [file for file in ours if len(Path(file).parts) > 3] == []


def test_every_module_says_what_lives_there() -> None:
    assert [file for file in FILES if not ast.get_docstring(tree_of(file))] == []


def test_every_package_declares_its_exports() -> None:
    packages = {path.parent for path in ROOT.rglob("*.py")}
    assert [str(path) for path in packages if not (path / "__init__.py").exists()] == []
    inits = [file for file in FILES if Path(file).name == "__init__.py"]
    assert [file for file in inits if exported(file) is None] == []


@pytest.mark.parametrize("file", [file for file in FILES if exported(file) is not None])
def test_exports_equal_public_definitions(file: str) -> None:
    names = exported(file) or []
    assert len(names) == len(set(names))
    defined = {
        node.name
        for node in tree_of(file).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }
    assert defined - set(names) == set(), "public, but not in __all__"
    if file in MADE_FROM and importlib.util.find_spec(MADE_FROM[file]) is None:
        pytest.skip(f"{MADE_FROM[file]} is not installed")
    module = importlib.import_module(module_name(file))
    assert [name for name in names if not hasattr(module, name)] == []


def in_fresh_interpreter(code: str) -> object:
    script = f"import sys; sys.path.insert(0, {str(SRC)!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "modules",
    [
        "lockstep",
        "lockstep, lockstep.train",
        "lockstep, lockstep.train.torch",
        "lockstep.train.lightning, lockstep.train.huggingface.transformers",
        "lockstep.tune, lockstep.tune.search.optuna, lockstep.tune.plots",
        "lockstep.tune.logger, lockstep.tune.logger.mlflow, lockstep.train.tracking",
        "lockstep.train.tensorflow.keras, lockstep.train.horovod, lockstep.testing",
    ],
)
def test_import_loads_no_framework(modules: str) -> None:
    loaded = in_fresh_interpreter(f"import {modules}, json; print(json.dumps(list(sys.modules)))")
    assert isinstance(loaded, list)
    assert not HEAVY & set(loaded)


def test_the_start_of_a_script_imports_little() -> None:
    """Every start of ``lockstep run`` waits for the client's imports."""
    loaded = in_fresh_interpreter(
        "before = set(sys.modules)\n"
        "import lockstep.cli, lockstep.warm.launch\n"
        "loaded = [name for name in sys.modules if name not in before]\n"
        "import json; print(json.dumps(loaded))"
    )
    assert isinstance(loaded, list)
    assert not {"argparse", "pickle", "re", "subprocess", "tempfile", "typing"} & set(loaded)


def test_import_starts_nothing() -> None:
    found = in_fresh_interpreter(
        "import json, os, threading, lockstep, lockstep.train\n"
        "children = []\n"
        "try:\n"
        "    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)\n"
        "    children = ['a child process']\n"
        "except ChildProcessError:\n"
        "    pass\n"
        "threads = [t.name for t in threading.enumerate()]\n"
        "print(json.dumps([threads, children]))"
    )
    assert found == [["MainThread"], []]


def test_only_frameworks_listen() -> None:
    """lockstep's own processes talk over socket pairs, to which nobody else can connect."""
    opens = ("listen", "accept", "create_server", "start_server", "serve_forever", "bind")
    found = {
        file
        for file in FILES
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute)
        and node.attr in opens
        # inspect.signature(…).bind has nothing to do with sockets.
        and not (node.attr == "bind" and "signature" in ast.dump(node.value))
    }
    assert found == LISTENERS
