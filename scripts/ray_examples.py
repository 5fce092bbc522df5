"""Run the examples of an installed Ray under ``lockstep run``, and count those that pass.

    python scripts/ray_examples.py RAY [PART…] [--jobs N] [--only TEXT] [--keep]

``RAY`` is the directory of the installed package (``…/site-packages/ray``). Each docstring with
examples of ``ray.data``, ``ray.train``, ``ray.tune`` and ``ray.air`` is one script, or two where it
has both kinds (``>>>`` and ``testcode``). What is printed must be what the docstring shows, except
where it says ``+SKIP`` or ``+MOCK``. The scripts in the package's ``examples`` directories must end
without an error (with ``--smoke-test``, where they have it). Nothing of Ray's text is kept: a run
over all of a part writes only names, numbers and reasons, to ``scripts/ray_surface/examples.json``,
which ``scripts/compatibility.py`` puts on the page.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import doctest
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "scripts" / "ray_surface" / "examples.json"
PARTS = ("train", "tune", "data", "air")
TIMEOUT_S = 240.0
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_NETWORK = re.compile(
    r"(example|s3|gs|gcs|abfss?|az|hf|hdfs|https?|mongodb|delta)://|load_dataset\(|from_pretrained\("
    r"|s3a://|openml|MNIST\(|CIFAR10\(|bigquery"
)
_ON_PURPOSE = re.compile(
    r"data\.datasource\.(datasink|datasource|file_datasink)|read_datasource|data\.llm|_internal_"
    r"|(read|write)_(iceberg|delta|snowflake|turbopuffer|lance|kafka|databricks|bigquery|mongo)"
    r"|data\.expressions\.\w+Expr\b|data\.stats\b|data\.util\.|\.rllib|pbt_ppo|pb2_ppo|dynamic_resou"
)
"""As the page lists it: data sources of one's own, what is internal to Ray, RLlib."""
_IRIS = re.compile(r"s3://(?:anonymous@)?(?:air|ray)-example-data/iris\.(?=csv|parquet)")
_CORE = re.compile(r"@ray\.remote|ray\.remote\(")
_DIRECTIVE = re.compile(r"^(\s*)\.\. (testcode|testoutput|testsetup|doctest)::(.*)$")
_DIFFERENT = "prints something else"
_MARK = "---- lockstep: end of block ----"

_DOCTEST = """
import doctest, json, sys
given = json.load(open({case!r}))
import importlib
try:  # as in Ray's own tests, a docstring sees the names of its module
    names = vars(importlib.import_module({module!r}))
    globals().update({{k: v for k, v in names.items() if k[:2] != "__"}})
except ImportError:
    pass
test = doctest.DocTestParser().get_doctest(given["text"], {{}}, given["name"], given["name"], 0)
test.globs = vars(sys.modules["__main__"])
told = []
class Checker(doctest.OutputChecker):
    def check_output(self, want, got, flags):
        # Where nothing is shown, nothing is compared: a script shows no values by itself.
        want, got = ("".join(text.split()) for text in (want, got))
        return not want or super().check_output(want, got, flags)
class Runner(doctest.DocTestRunner):
    def report_failure(self, out, test, example, got):
        line = example.source.strip().splitlines()[0]
        what = "prints something else"
        if example.want.startswith(("shape: (", "Dataset(", "MapBatches(")):
            what = "shows a dataset, which differs on purpose"
        told.append(f"{{what}}: {{line}}")
        super().report_failure(out, test, example, got)
    def report_unexpected_exception(self, out, test, example, info):
        told.append(f"{{info[0].__name__}}: {{info[1]}}")
        super().report_unexpected_exception(out, test, example, info)
Runner(Checker(), optionflags={flags}).run(test, clear_globs=False)
json.dump(told, open({result!r}, "w"))
"""


class Case(NamedTuple):
    """The examples of one kind in one docstring."""

    name: str
    module: str
    kind: str
    text: str


class Outcome(NamedTuple):
    """How a case ended: ``"passed"``, ``"failed"`` or ``"left out"``, and why."""

    name: str
    state: str
    reason: str = ""


def cases(ray: Path, parts: tuple[str, ...]) -> Iterator[Case]:
    """Every docstring with examples, of the public modules."""
    for part in parts:
        for file in sorted((ray / part).rglob("*.py")):
            relative = file.relative_to(ray.parent)
            if {"_internal", "tests"} & set(relative.parts):
                continue
            source = file.read_text(encoding="utf-8")
            module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            if "examples" in relative.parts:
                if "__main__" in source:
                    yield Case(module, module, "script", source)
                continue
            if ">>> " not in source and "testcode::" not in source:
                continue
            for name, text in _docstrings(ast.parse(source), module):
                if "testcode::" in text:
                    yield Case(name, module, "testcode", text)
                shown = _without_blocks(text)
                examples = doctest.DocTestParser().get_examples(shown)
                if any(not e.options.get(doctest.SKIP) for e in examples):
                    yield Case(name, module, "doctest", shown)


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, kinds) and (text := ast.get_docstring(node, clean=True)):
        yield name, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, kinds[1:]) and (child.name[0] != "_" or child.name[:2] == "__"):
            yield from _docstrings(child, f"{name}.{child.name}")
        elif isinstance(child, (ast.If, ast.Try)):
            yield from _docstrings(child, name)


def _blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """The directives of a docstring: which, its options, its text."""
    lines = text.splitlines()
    place = 0
    while place < len(lines):
        found = _DIRECTIVE.match(lines[place])
        place += 1
        if found is None:
            continue
        indent = len(found[1])
        body = []
        while place < len(lines) and (
            not lines[place].strip() or len(lines[place]) - len(lines[place].lstrip()) > indent
        ):
            body.append(lines[place])
            place += 1
        block = textwrap.dedent("\n".join(body)).strip("\n").splitlines()
        options = []
        while block and block[0].lstrip().startswith(":"):
            options.append(block.pop(0))
        yield found[2], "\n".join([found[3], *options]), "\n".join(block).strip("\n")


def _without_blocks(text: str) -> str:
    """The docstring without what testcode and testoutput show."""
    kept, skipping = [], None
    for line in text.splitlines():
        found = _DIRECTIVE.match(line)
        indent = len(line) - len(line.lstrip())
        if skipping is not None and line.strip() and indent <= skipping:
            skipping = None
        if found is not None and found[2] != "doctest":
            skipping = indent
        if skipping is None:
            kept.append(line)
    return "\n".join(kept)


def _code(kind: str, text: str) -> str:
    """What of a case is executed."""
    if kind == "script":
        return text
    if kind == "doctest":
        examples = doctest.DocTestParser().get_examples(text)
        return "".join(e.source for e in examples if not e.options.get(doctest.SKIP))
    return "\n".join(block for name, _, block in _blocks(text) if name != "testoutput")


def _write_iris(directory: Path) -> None:
    """The one data set that most docstrings read, from scikit-learn rather than the network."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.datasets import load_iris

    data = load_iris()
    names = ["sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"]
    frame = pd.DataFrame(data.data, columns=names)
    frame.assign(target=data.target).to_csv(directory / "iris.csv", index=False)
    names = ["sepal.length", "sepal.width", "petal.length", "petal.width"]
    frame.columns = pd.Index(names)
    kinds = [data.target_names[kind].capitalize() for kind in data.target]
    table = pa.Table.from_pandas(frame, preserve_index=False)
    table = table.append_column("variety", pa.array(kinds, pa.string()))
    pq.write_table(table.replace_schema_metadata(None), directory / "iris.parquet")


def run(case: Case, directory: Path) -> Outcome:
    """Run a case in a directory of its own."""
    if _ON_PURPOSE.search(case.name):
        return Outcome(case.name, "left out", "lockstep leaves it out on purpose")
    text = _IRIS.sub(f"{directory}/iris.", case.text.replace("/tmp/", f"{directory}/"))
    used = _code(case.kind, text)
    if _NETWORK.search(used):
        return Outcome(case.name, "left out", "needs the network")
    if _CORE.search(used):
        return Outcome(case.name, "left out", "needs Ray Core")
    directory.mkdir()
    if _IRIS.search(case.text):
        _write_iris(directory)
    script, result = directory / "example.py", directory / "result.json"
    wanted: list[tuple[str, str]] = []
    arguments: list[str] = []
    if case.kind == "script":
        code = text
        arguments = ["--smoke-test"] if "--smoke-test" in text else []
    elif case.kind == "doctest":
        given = directory / "case.json"
        given.write_text(json.dumps({"name": case.name, "text": text}))
        code = _DOCTEST.format(
            case=str(given), result=str(result), flags=_FLAGS, module=case.module
        )
    else:
        # Ray's module is there for a docstring that does not import it.
        code = "" if re.search(r"^\s*import ray$", used, re.MULTILINE) else "import ray\n"
        for kind, options, block in _blocks(text):
            if kind in ("testcode", "testsetup"):
                code += f"{block}\nprint({_MARK!r})\n"
                wanted.append(("", ""))
            elif kind == "testoutput" and wanted:
                wanted[-1] = (block, options)
    script.write_text(code, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "LOCKSTEP_STORAGE": str(directory / "results"),
        "WANDB_MODE": "offline",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "lockstep", "run", str(script), *arguments]
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Outcome(case.name, "failed", f"did not end within {TIMEOUT_S:.0f} s")
    (directory / "output.txt").write_text(out + "\n---- stderr\n" + errors, encoding="utf-8")
    return _judged(case, out, errors, process.returncode, result, wanted)


def _judged(
    case: Case,
    out: str,
    errors: str,
    exitcode: int,
    result: Path,
    wanted: list[tuple[str, str]],
) -> Outcome:
    reason = ""
    if case.kind == "doctest" and result.exists():
        told = json.loads(result.read_text())
        reason = told[0] if told else ""
    elif exitcode:
        lines = [line for line in errors.splitlines() if line.strip()]
        reason = next(
            (ln for ln in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", ln)), ""
        )
        reason = reason or (lines[-1] if lines else f"exit code {exitcode}")
    else:
        printed = out.split(f"{_MARK}\n")
        checker = doctest.OutputChecker()
        for (block, options), got in zip(wanted, printed, strict=False):
            shown = block and "MOCK" not in options and "SKIP" not in options
            wanted_text, got_text = ("".join(text.split()) for text in (block, got))
            if shown and not checker.check_output(wanted_text, got_text, _FLAGS):
                reason = _DIFFERENT
                if block.startswith("Dataset("):
                    reason = "shows a dataset, which differs on purpose"
    if not reason:
        return Outcome(case.name, "passed")
    if case.kind == "testcode" and reason.startswith("NameError"):
        return Outcome(case.name, "left out", "the docstring is not complete")
    if re.search(r"ray\.\w+\.examples|mock_trainable|MyTrainableClass", reason):
        return Outcome(case.name, "left out", "needs another file of Ray's examples")
    missing = re.search(r"No module named '?([\w.]+)", reason) or re.search(
        r"(?:needs|requires) [`']?(\w+)", reason
    )
    if (
        missing
        and ("ImportError" in reason or "ModuleNotFound" in reason)
        and "ray" not in missing[1]
    ):
        return Outcome(case.name, "left out", f"needs {missing[1].split('.')[0]}")
    return Outcome(case.name, "failed", " ".join(reason.split())[:200])


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ray", type=Path)
    parser.add_argument("parts", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--keep", type=Path, help="keep the scripts and their output here")
    options = parser.parse_args()
    parts = tuple(options.parts) or PARTS
    chosen = [case for case in cases(options.ray, parts) if options.only in case.name]
    place = options.keep or Path(tempfile.mkdtemp(prefix="ray-examples-"))
    place.mkdir(parents=True, exist_ok=True)
    outcomes = []
    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            tasks = [
                pool.submit(run, case, place / f"{number:03d}-{case.name[-60:]}")
                for number, case in enumerate(chosen)
            ]
            for task in concurrent.futures.as_completed(tasks):
                outcome = task.result()
                outcomes.append(outcome)
                if outcome.state != "passed":
                    print(f"{outcome.state}: {outcome.name}: {outcome.reason}", flush=True)
    finally:
        if options.keep is None:
            shutil.rmtree(place, ignore_errors=True)
    for part in parts:
        print(part, dict(_counts(outcomes, part)))
    if not options.only:
        _save(options.ray, parts, outcomes)
    return 0


def _counts(outcomes: list[Outcome], part: str) -> Counter[str]:
    return Counter(o.state for o in outcomes if o.name.split(".")[1] == part)


def _plain(reason: str) -> str:
    """A reason without the example's line, which is Ray's text, and without paths."""
    reason = re.sub(rf"({_DIFFERENT}|on purpose): .*", r"\1", reason)
    return re.sub(r" ?\(?(?<!\w)/[\w./-]+\)?", "", reason)


def _save(ray: Path, parts: tuple[str, ...], outcomes: list[Outcome]) -> None:
    """Keep the results of these parts; those of others stay."""
    version = re.search(r'version = "([^"]+)"', (ray / "_version.py").read_text())
    assert version is not None
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = {part: kept["parts"][part] for part in PARTS if part in kept["parts"]}
    for part in parts:
        own = [o for o in outcomes if o.name.split(".")[1] == part]
        found[part] = {
            "passed": sum(o.state == "passed" for o in own),
            "left_out": dict(
                sorted(Counter(o.reason for o in own if o.state == "left out").items())
            ),
            "failed": {o.name: _plain(o.reason) for o in sorted(own) if o.state == "failed"},
        }
    kept = {"version": version[1], "parts": {part: found[part] for part in PARTS if part in found}}
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
