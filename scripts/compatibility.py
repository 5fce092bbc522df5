"""Compare lockstep's names and arguments with Ray's, and write docs/compatibility.md.

    python scripts/compatibility.py              # renews the page, prints the numbers (make compat)
    python scripts/compatibility.py SCRIPTS…     # besides: how many files of these find all names

What Ray has is in ``scripts/ray_surface/``, one file a version; Ray itself is not needed.
``tests/test_compatibility.py`` compares the page with the code.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.porting.names import Missing, find, find_module

ROOT = Path(__file__).resolve().parents[1]
SURFACE = ROOT / "scripts" / "ray_surface"
DIFFERENT = SURFACE / "different.md"
"""The one part of the page that is written by hand."""
EXAMPLES = SURFACE / "examples.json"
PAGE = ROOT / "docs" / "compatibility.md"
PARTS = {"Train": "train", "AIR": "air", "Tune": "tune", "Data": "data"}

REMOVED = "Ray has removed it, too; the import names today's way"
PREDICTORS = "predictors: Ray has removed them, too; predict with `map_batches` and a class"
SOURCES = (
    "data sources of one's own are left out: `from_items`, `from_arrow`, `from_torch`, or a "
    "generator in `flat_map`"
)
LAKES = (
    "lakes, warehouses and message queues are left out: read with their own client, then "
    "`from_arrow` or `from_pandas`"
)
ENGINES = "other dataframe engines are left out: convert to pandas or Arrow first"
PIPELINES = "Ray has removed pipelines, too; every dataset is streamed"
PLAN = "of Ray Data's scheduler: there are no blocks in an object store, and no task for each"
CLUSTER = "of a cluster's scheduling: there is one machine, or Ray's own placement"
INTERNAL = (
    "for Ray's own code: constructors of objects that the library makes, hooks that it calls, "
    "helpers"
)
LOGGERS = "loggers of the time before callbacks: Ray has removed them, too; use `LoggerCallback`"
REPORTERS = "the display is lockstep's own; reporters are accepted without effect"
SEARCHERS = (
    "the library behind it does not install on a current Python: use `OptunaSearch` with any of "
    "Optuna's samplers"
)
FORMATS = (
    "formats of other libraries are left out: read with the library, then `from_torch`, "
    "`from_numpy` or `map_batches`"
)
ROWS = (
    "rows of a block may be read in parts, and by other workers after a restart, so a number that "
    "depends on what is read together would not be the same again"
)
SPACES = "a search space is given as `param_space`; each searcher converts it itself"
MODELS = "inference engines are left out: call one in `map_batches`"
RLLIB = "of RLlib"

# A name, or a name with (argument), → why it is left out. The first pattern that fits counts.
LEFT_OUT = (
    (r"Predictor|\.predictor", PREDICTORS),
    (
        r"train\.(rl|mosaic|sklearn)\b|SklearnTrainer|TransformersTrainer|HuggingFaceTrainer",
        REMOVED,
    ),
    (r"Lightning(Trainer|Config|Checkpoint)|AccelerateTrainer|TransformersCheckpoint", REMOVED),
    (r"GBDTTrainer|HuggingFaceCheckpoint|SklearnCheckpoint|RLCheckpoint", REMOVED),
    (r"train\.(Trainer|TrainingCallback|TrainingIterator)\b", REMOVED),
    (r"(D|d)atasetPipeline|\.window\b|\.repeat\b|BlockWorker", PIPELINES),
    (r"_(bigquery|mongo|iceberg|delta|delta_sharing_tables|hudi|kafka|lance|clickhouse)", LAKES),
    (r"(snowflake|databricks_tables|unity_catalog|mcap|turbopuffer|delta)\b", LAKES),
    (r"Catalog|ClickHouse|Kafka|Iceberg|Delta|ResolvedSource|ReaderFormat|SinkMode", LAKES),
    (r"from_(dask|modin|mars|spark|daft)|to_(dask|modin|mars|spark|daft)|from_tf$", ENGINES),
    (r"(D|d)atasource|(D|d)atasink|ReadTask|Reader\b|FileMetadataProvider|\.SaveMode", SOURCES),
    (r"read_(lerobot|zarr)", FORMATS),
    (r"monotonically_increasing_id", ROWS),
    (r"expressions\.(star|unnest)|Expr\(data_type|list_stats_summaries|TFXReadOptions", PLAN),
    (r"read_parquet_bulk|range_table|set_progress_bars|experimental_lazy|legacy_m", REMOVED),
    (r"iter_epochs|CheckpointStrategy|block_path_provider|set_filetype|runner_data", REMOVED),
    (r"convert_search_space|register_analysis|repeat_float_precision", SPACES),
    (r"output_field|stat_computation_plan|safe_get|storage_context", INTERNAL),
    (
        r"(ControllerError|NCCLHangError|PreemptionError|WorkerGroupError|PreemptionInfo)\(",
        INTERNAL,
    ),
    (r"train_func_context|preferred_batch_format|set_train_total|start_timeout|mpi_init", INTERNAL),
    (r"head_bundle_is_empty|ExperimentAnalysis\.stats|transform_stats|\(trial_runner", INTERNAL),
    (r"\.llm|vllm|\(model|TextEmbed", MODELS),
    (r"register_env|RLlib", RLLIB),
    (r"tune\.logger\.(Logger|CSVLogger|JsonLogger|TBXLogger|NoopLogger|Unified|Legacy)", LOGGERS),
    (r"Reporter\.", REPORTERS),
    (r"\.(Result|ResultGrid|ExperimentAnalysis|Trainable|TensorflowCheckpoint)\(", INTERNAL),
    (r"Checkpoint\(obj_ref|Legacy\w+Checkpoint|DatasetConfig\.|RuntimeEnv|AggregateFn", INTERNAL),
    (r"\.(combine|finalize|get_agg_name|get_target_column|zero|structurally_equals)\b", INTERNAL),
    (r"aggregate\.\w+_spec|_spec$|ArrowAggSpec|TypeCategory|\.is_\w+_type$|DataType\.", INTERNAL),
    (r"expressions\.\w+Expr\b|expressions\.\w*Visitor|PyArrow|get_type|Operation$", INTERNAL),
    (r"Trainable\.(is_actor|train_buffered|get_auto|get_state|log_result|resource_help)", INTERNAL),
    (r"Trainable\.(get_current_ip|restore_from_object|save_to_object|uses_cloud)", INTERNAL),
    (r"UNDEFINED|UNRESOLVED|SearchGenerator|SearchAlgorithm|UtilMonitor|warn_if_slow", INTERNAL),
    (r"AcquiredResources|ResourceRequest|NodeIdStr|DataBatchType|RayTrainCheckpoint", INTERNAL),
    (r"ExecutionResources|ExecutionOptions|RandomSeedConfig|CheckpointBackend", PLAN),
    (r"get_dataset_config|RayLightningEnvironment\.|Strategy\.|\.on_(pause|unpause)", INTERNAL),
    (r"PopulationBasedTraining\.|HyperBandScheduler\.|ResourceChanging|to_wrapper", INTERNAL),
    (r"export_formats|server_port|trial_executor|logger_creator|remote_checkpoint_dir", INTERNAL),
    (r"prevent_upload|sync_on_checkpoint|custom_syncer|checkpoint_node_ip|\(warn", INTERNAL),
    (r"\.xla\b|TorchXLA|from_cudf|to_cudf|aim\.", CLUSTER),
    (r"BOHB", SEARCHERS),
    (r"\.search\.(ax|hebo|zoopt)\.", SEARCHERS),
    (r"data\.(Dataset|Schema|DataContext|ExecutionOptions|ExecutionResources)\(", PLAN),
    (r"data\.context\.DataContext|data\.DataContext", PLAN),
    (r"object_refs?\b|get_internal_block|num_blocks|randomize_block|_block|lineage", PLAN),
    (r"random_access|RandomAccess|input_files|size_bytes|fully_executed|is_fully", PLAN),
    (r"\((parallelism|override_num_blocks|ray_remote_args|concurrency|memory|num_cpus)", PLAN),
    (r"ray_remote_args|num_gpus\)|_fn\)|compute\)|labels?_selector|operator_id", PLAN),
    (r"placement|trainer_resources|Tpu|(?<!ou)tpu|topology|slice", CLUSTER),
)


class Entry(NamedTuple):
    """One line of Ray's file: a name, a member of a class, or either with its arguments."""

    path: str
    arguments: tuple[str, ...] | None


class Gap(NamedTuple):
    """What lockstep does not have: a name, or an argument of one."""

    name: str
    reason: str
    """Empty: it is missing, and that is no decision."""


class Measured(NamedTuple):
    """The comparison with one version."""

    names: Counter[str]
    names_there: Counter[str]
    arguments: Counter[str]
    arguments_there: Counter[str]
    gaps: list[Gap]


def versions() -> list[str]:
    """The versions of Ray that there is a file of, oldest first."""
    found = [file.stem for file in SURFACE.glob("*.txt")]
    return sorted(found, key=lambda text: [int(part) for part in text.split(".")])


def entries(version: str) -> Iterator[Entry]:
    """The lines of a version's file."""
    for line in (SURFACE / f"{version}.txt").read_text(encoding="utf-8").splitlines():
        path, opened, rest = line.partition("(")
        names = tuple(rest.removesuffix(")").split(", ")) if rest != ")" else ()
        yield Entry(path, names if opened else None)


def part_of(path: str) -> str:
    """Train, AIR, Tune, Data, or Core."""
    second = path.split(".")[1]
    return next((part for part, name in PARTS.items() if name == second), "Core")


def measure(version: str) -> Measured:
    """What of a version's names and arguments lockstep has."""
    measured = Measured(Counter(), Counter(), Counter(), Counter(), [])
    for entry in entries(version):
        part = part_of(entry.path)
        reason = _reason(entry.path)
        try:
            value = resolve(entry.path)
        except Missing:
            if reason is None:
                measured.names[part] += 1
            measured.gaps.append(Gap(entry.path, reason or ""))
            continue
        measured.names[part] += 1
        measured.names_there[part] += 1
        for argument in entry.arguments or ():
            if takes(value, argument):
                measured.arguments[part] += 1
                measured.arguments_there[part] += 1
                continue
            name = f"{entry.path}({argument})"
            why = _reason(name)
            if why is None:
                measured.arguments[part] += 1
            measured.gaps.append(Gap(f"{entry.path}({argument}=)", why or ""))
    return measured


def _reason(name: str) -> str | None:
    return next((why for pattern, why in LEFT_OUT if re.search(pattern, name)), None)


@cache
def resolve(path: str) -> Any:
    """What ``ray.…`` is in lockstep: a module's name, or a member of a class.

    Raises:
        Missing: lockstep does not have it.
    """
    parts = path.split(".")[1:]
    for cut in range(len(parts) - 1, -1, -1):
        try:
            value = find(".".join(parts[:cut]), parts[cut])
        except Missing:
            continue
        lazy = parts[0] == "data" or parts[cut] in ("DataConfig", "Result")
        if value is None and lazy:  # made on first use, and needs no framework
            with suppress(ImportError, AttributeError):
                value = getattr(find_module(".".join(parts[:cut])), parts[cut])
        for member in parts[cut + 1 :]:
            value = _member(value, member)
        return value
    raise Missing(path)


def _member(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError:
        fields = {field.name for field in dataclasses.fields(value)} if _is_data(value) else set()
        annotated = {key for base in getattr(value, "__mro__", ()) for key in _attributes(base)}
        if name in fields | annotated:
            return None
        raise Missing(name) from None


def _is_data(value: Any) -> bool:
    return inspect.isclass(value) and dataclasses.is_dataclass(value)


def _attributes(cls: type) -> set[str]:
    """What is annotated, and what the constructor sets, or what it reads a run with."""
    methods = [vars(cls).get(name) for name in ("__init__", "_read")]
    codes = [code for method in methods if (code := getattr(method, "__code__", None))]
    return {*vars(cls).get("__annotations__", {}), *(n for code in codes for n in code.co_names)}


def takes(value: Any, argument: str) -> bool:
    """Whether a call may have the argument; yes where the signature does not say."""
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return True
    return argument in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def page() -> str:
    """The text of docs/compatibility.md."""
    found = {version: measure(version) for version in versions()}
    parts = [*PARTS, "Core"]
    lines = [
        "# Compatibility with Ray",
        "",
        "What of Ray's documented names and arguments lockstep has, per Ray version. Made by",
        "`make compat` from both libraries' names and signatures; do not edit. What is left out on",
        "purpose is not counted, and listed below with the reason.",
        "",
        "| | " + " | ".join(f"Ray {version}" for version in found) + " |",
        "|---|" + "---|" * len(found),
    ]
    for part in parts:
        cells = [f"{m.names_there[part]} of {m.names[part]}" for m in found.values()]
        lines.append(f"| {part}: names | " + " | ".join(cells) + " |")
        cells = [f"{m.arguments_there[part]} of {m.arguments[part]}" for m in found.values()]
        lines.append(f"| {part}: arguments | " + " | ".join(cells) + " |")
    lines += ["", *_examples()]
    lines += ["", *DIFFERENT.read_text(encoding="utf-8").splitlines(), "", "## Missing", ""]
    where: dict[str, list[str]] = {}
    for name, versions_of in _by_version(found, lambda gap: not gap.reason):
        where.setdefault(versions_of, []).append(name)
    for versions_of, names in sorted(where.items(), key=lambda item: -len(item[1])):
        lines += [f"In Ray {versions_of}:", ""]
        lines += _wrapped(", ".join(f"`{name.removeprefix('ray.')}`" for name in names))
        lines.append("")
    lines += ["## Left out, and why", ""]
    for reason in sorted({gap.reason for m in found.values() for gap in m.gaps if gap.reason}):
        left_out = _by_version(found, lambda gap, reason=reason: gap.reason == reason)
        lines += [f"**{reason[0].upper()}{reason[1:]}.**", ""]
        lines += _wrapped(", ".join(f"`{name.removeprefix('ray.')}`" for name, _ in left_out))
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _examples() -> list[str]:
    """What ``scripts/ray_examples.py`` has found in its last run."""
    found = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    rows, reasons, failed = [], Counter[str](), []
    for part, results in found["parts"].items():
        passed, total = results["passed"], results["passed"] + len(results["failed"])
        rows.append(f"| `ray.{part}` | {passed} of {total} | {sum(results['left_out'].values())} |")
        reasons.update(results["left_out"])
        failed += [f"| `{name}` | {_cell(why)} |" for name, why in results["failed"].items()]
    why = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
    return [
        "## Ray's own examples",
        "",
        f"`scripts/ray_examples.py` runs the examples in the package of Ray {found['version']} "
        "unmodified under",
        "`lockstep run`: those in its docstrings, which must print what the docstring shows, and",
        "the scripts of `ray.tune.examples` and `ray.train.examples`, which must end without an",
        "error.",
        "",
        "| | pass | left out |",
        "|---|---|---|",
        *rows,
        "",
        *_wrapped(f"Left out: {why}."),
        "",
        "| fails | why |",
        "|---|---|",
        *failed,
    ]


def _cell(text: str) -> str:
    """Text in a table: no column ends in it, and nothing in it is Markdown."""
    return f"`{text.replace('|', '/').replace('`', chr(39))}`"


def _by_version(found: dict[str, Measured], wanted: Any) -> list[tuple[str, str]]:
    """Names with the versions that have them, sorted."""
    where: dict[str, list[str]] = {}
    for version, measured in found.items():
        for gap in measured.gaps:
            if wanted(gap):
                where.setdefault(gap.name, []).append(version)
    return [(name, ", ".join(where[name])) for name in sorted(where)]


def _wrapped(text: str, width: int = 150) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def measure_scripts(directories: Sequence[str]) -> Iterator[str]:
    """For each directory: how many of the files that use Ray find everything they use."""
    from lockstep.porting import port_source

    for directory in directories:
        used = complete = 0
        reasons: Counter[str] = Counter()
        for file in sorted(Path(directory).rglob("*.py")):
            source = file.read_bytes()
            if not re.search(rb"^\s*(import|from) ray\b", source, re.MULTILINE):
                continue
            used += 1
            names = {remark.name for remark in port_source(source).remarks}
            # Ray's own examples import each other.
            names = {name for name in names if name[:4] != "RAY_" and ".examples." not in name}
            complete += not names
            reasons.update(names)
        yield f"{directory}: {complete} of {used} scripts find everything they use"
        yield from (f"    {count:3d}  {name}" for name, count in reasons.most_common(15))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: renewed")
    for version in versions():
        measured = measure(version)
        print(f"\nRay {version}")
        for part in [*PARTS, "Core"]:
            print(
                f"  {part:6}{measured.names_there[part]:5} of {measured.names[part]:4} names, "
                f"{measured.arguments_there[part]:5} of {measured.arguments[part]:5} arguments"
            )
    for line in measure_scripts(sys.argv[1:]):
        print(line)
