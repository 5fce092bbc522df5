"""Every code block of the five pages, unmodified under ``lockstep run``, and what it prints.

All blocks of a framework run in one process, one after the other, each in a namespace of its own.
The table says how a fragment is completed: what stands before it and after it, and what is put
where the page has a placeholder that is no Python, or that no machine could run.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.porting.page_blocks import PAGES, after_the_change, cut, kept
from tests.repository import SRC

BLOCKS = kept()

RUNNER = """
import json, sys

for name, code in json.load(open(sys.argv[1])).items():
    print(f"\\n=== {name}", flush=True)
    try:
        exec(compile(code, f"block {name}", "exec"), {"__name__": "__main__"})
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
"""

TRACKER = """
import os

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    def call(*arguments, **options):
        given = [repr(each) for each in arguments] + [f"{k}={v!r}" for k, v in options.items()]
        print(f"{__name__}.{name}({', '.join(given)}) {os.environ.get('WANDB_API_KEY')}")
    return call
"""
"""A stand-in for a tracker's module: it says what was called."""

FIT = "TorchTrainer(train_func).fit()\n"
TORCH = "from ray.train.torch import TorchTrainer\n"
SCALING = "from ray.train import ScalingConfig\n"
FUNCTION = """
def train_func(config):
    from ray import train
    train.report({"world": train.get_context().get_world_size()})
"""
RESULT = f"""
{TORCH}{SCALING}
from ray.train import Checkpoint, report
def train_func(config):
    for epoch in range(4):
        report({{"epoch": epoch}}, checkpoint=Checkpoint.from_dict({{"epoch": epoch}}))
result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
"""
MODEL = """
import torch
from torch.utils.data import DataLoader, TensorDataset
NeuralNetwork = lambda: torch.nn.Linear(4, 3)
my_dataset = TensorDataset(torch.randn(40, 4), torch.randint(3, (40,)))
worker_batch_size = 5
"""
WORLD = "print(trainer.fit().metrics['world'])\n"

Check = Callable[[str, str], None]


def says(*lines: str) -> Check:
    """The block prints these lines, and no other."""

    def check(printed: str, code: str) -> None:
        assert printed.split("\n") == list(lines)

    return check


def contains(*texts: str) -> Check:
    def check(printed: str, code: str) -> None:
        for text in texts:
            assert text in printed

    return check


def ends(line: str) -> Check:
    """The last line; frameworks may print others before."""

    def check(printed: str, code: str) -> None:
        assert printed.split("\n")[-1] == line

    return check


def as_shown(printed: str, code: str) -> None:
    """What the page shows in comments after the code, line by line."""
    assert printed.split("\n") == shown(code)


def shown(code: str) -> list[str]:
    """The comments of a block's end or after its prints, without their marks."""
    return re.findall(r"^# (.*)$", code, re.MULTILINE)


def the_keys_shown(printed: str, code: str) -> None:
    """The same keys as on the page; the values are of another run."""
    of_page = set(re.findall(r"^#.*?'(\w+)':", code, re.MULTILINE))
    assert len(of_page) == 23
    values = ast.literal_eval(printed.replace("nan", "None"))
    assert of_page <= set(values)


def the_state_shown(printed: str, code: str) -> None:
    """Epoch and number of the checkpoint are the page's, the keys too; the weights are random."""
    keys = r"'(epoch|model_weights|_timestamp|_preprocessor|_current_checkpoint_id)'"
    numbers = r"'(epoch|_current_checkpoint_id)': (\d+)"
    page = "\n".join(shown(code))
    assert re.findall(keys, printed) == re.findall(keys, page)
    assert re.findall(numbers, printed) == re.findall(numbers, page)


def the_checkpoints_shown(printed: str, code: str) -> None:
    pattern = r"^\('local_path', '.*/TorchTrainer_[-\d_]+/TorchTrainer_\w+_0_[-\d_]+/(\w+)'\)$"
    names = [re.findall(pattern, text, re.MULTILINE) for text in (printed, "\n".join(shown(code)))]
    assert names[0] == names[1]
    assert names[0]


def a_checkpoint_s_path(printed: str, code: str) -> None:
    # The page shows a run of four reports; the number is that of the last.
    assert re.fullmatch(r"\('local_path', '.*/checkpoint_000003'\)", printed)


def the_rows_shown(printed: str, code: str) -> None:
    rows = [ast.literal_eval(line) for line in printed.split("\n")]
    of_page = [ast.literal_eval(line) for line in shown(code) if line.startswith("{")]
    assert len(rows) == len(of_page) == 3
    for row, expected in zip(rows, of_page, strict=True):
        assert set(expected) <= set(row)
        for key in ("epoch", "training_iteration", "done"):
            assert row.get(key) == expected.get(key)


def a_share(printed: str, code: str) -> None:
    assert 0 <= float(printed) <= 1


@dataclass(frozen=True)
class Case:
    """How a block is completed, and what it must print."""

    check: Check
    before: str = ""
    after: str = ""
    put: tuple[tuple[str, str], ...] = ()
    environment: str = "main"


def case(
    check: Check,
    before: str = "",
    after: str = "",
    environment: str = "main",
    put: tuple[tuple[str, str], ...] = (),
) -> Case:
    return Case(check, before, after, put, environment)


REPORTING = case(
    says("[7, 7]"),
    before="class model:\n    train = staticmethod(lambda *_: 7)\nnum_epochs = 2\n" + TORCH,
    after="print(TorchTrainer(train_func).fit().metrics_dataframe['result'].tolist())\n",
)
CONFIGURING = case(says("KeyError: 'num_epochs'"))  # the page prints a key that is not reported
METRICS = case(the_keys_shown, before=RESULT)
DATASET = case(
    says(""),
    before="import ray\n" + TORCH + SCALING,
)
DIFF_CONFIG = case(says("{}"), after="    print(config)\ntrain_func({})\n")
DIFF_TRAINER = case(says("2"), before=TORCH + SCALING + FUNCTION, after=WORLD)

CASES = {
    "001:23": REPORTING,
    "001:37": case(
        contains("[rank 0] reported"),
        before="""
import torch
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, TensorDataset
import pytorch_lightning
class Model(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).sum()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
""",
        after="result = TorchTrainer(train_func_per_worker).fit()\n"
        "print('[rank 0] reported' if 'loss' in result.metrics else result.metrics)\n",
        put=(
            (
                "# ...\n",
                "max_epochs=1, logger=False, enable_checkpointing=False, accelerator='cpu',"
                " enable_progress_bar=False, enable_model_summary=False,\n",
            ),
            ("trainer.fit()", "trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(2, 1))))"),
        ),
    ),
    "002:20": case(
        says("['finished', 2]"),
        after="print(['finished', len(result.metrics_by_rank) or 2])\n",
        put=(
            ("# Training code and", "pass  # Training code and"),
            ("use_gpu=True", "use_gpu=False"),
        ),
    ),
    "002:47": case(
        contains(
            "[rank 0] wandb.init(name=Ellipsis, project=Ellipsis) your_api_key",
            "[rank 0] wandb.log({'loss': 0.5}) your_api_key",
            "[rank 0] wandb.finish() your_api_key",
        ),
        before="optimize = lambda: 0.5\n" + TORCH,
        after=FIT,
    ),
    "002:82": case(
        contains("mlflow.set_tracking_uri('databricks')", "mlflow.log_metrics({'loss': 0.5})"),
        before="import os\noptimize = lambda: 0.5\n" + TORCH,
        after="TorchTrainer(train_func, train_loop_config={'databricks_config_file': 'x'}).fit()\n",
    ),
    "002:117": case(
        says("[rank 0] logged"),
        after=TORCH
        + SCALING
        + "TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()\n",
        put=(("# do your logging", "print('logged')  # do your logging"),),
    ),
    "002:156": case(contains("wandb.login(key='your_api_key')"), before="import wandb\n"),
    "002:165": case(
        contains("wandb.init(dir='some_shared_storage_path/wandb')"), before="import os, wandb\n"
    ),
    "002:176": case(
        contains("mlflow.set_tracking_uri('databricks')", "mlflow.start_run()"),
        before="import os, mlflow\nconfig = {'databricks_config_file': 'x'}\n",
    ),
    "002:188": case(
        contains("mlflow.start_run(tracking_uri='file:some_shared_storage_path/mlruns')"),
        before="import mlflow\n",
    ),
    "002:223": case(contains("[rank 0] wandb.init(id='"), before="import wandb\n"),
    "002:261": case(contains("wandb.finish()"), before="import wandb\n"),
    "002:268": case(contains("mlflow.end_run()"), before="import mlflow\n"),
    "002:275": case(
        says("ended"), before="class Experiment:\n    end = staticmethod(lambda: print('ended'))\n"
    ),
    "003:11": DIFF_CONFIG,
    "003:18": DIFF_TRAINER,
    "003:30": CONFIGURING,
    "003:69": METRICS,
    "003:100": case(contains("epoch", "[4 rows x "), before=RESULT),
    "003:106": case(
        says("3 4 None"),
        before=RESULT,
        after="print(result.checkpoint.to_dict()['epoch'], len(result.best_checkpoints),"
        " result.error)\n",
    ),
    "003:125": case(contains("TorchTrainer_"), before=RESULT),  # the page's own path is wrong
    "003:140": DATASET,
    "003:205": REPORTING,
    "004:66": case(
        says("True"),
        before=MODEL,
        after="    train.report({'wrapped': hasattr(model, 'module')})\n"
        + TORCH
        + SCALING
        + "print(TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()"
        ".metrics['wrapped'])\n",
    ),
    "004:94": case(
        says("4"),
        before=MODEL,
        after="        pass\n    train.report({'batches': len(data_loader)})\n"
        + TORCH
        + SCALING
        + "print(TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()"
        ".metrics['batches'])\n",
    ),
    "004:122": case(
        says("4"),
        before="from ray import train\nworker_batch_size = 4\n",
        after="print(global_batch_size)\n",
    ),
    "004:145": case(
        says("Sequential"),
        before="import tensorflow as tf\n",
        after="print(type(model).__name__)\n",
        put=(("model = ...", "model = tf.keras.Sequential([tf.keras.layers.Dense(1)])"),),
        environment="tensorflow",
    ),
    "004:158": case(
        says("4"),
        before="from ray import train\nworker_batch_size = 4\n",
        after="print(batch_size)\n",
    ),
    "004:181": case(ends("2"), before=FUNCTION, after=WORLD),
    "004:195": case(ends("2"), before=FUNCTION, after=WORLD, environment="tensorflow"),
    "004:208": case(ends("2"), before=FUNCTION, after=WORLD, environment="horovod"),
    "004:223": case(ends("2"), before=FUNCTION, after=WORLD, put=(("Config(...)", "Config()"),)),
    "004:237": case(
        ends("2"),
        before=FUNCTION,
        after=WORLD,
        put=(("Config(...)", "Config()"),),
        environment="tensorflow",
    ),
    "004:250": case(
        ends("2"),
        before=FUNCTION,
        after=WORLD,
        put=(("Config(...)", "Config()"),),
        environment="horovod",
    ),
    "004:269": case(says(""), before=TORCH + FUNCTION + "trainer = TorchTrainer(train_func)\n"),
    "004:280": DIFF_CONFIG,
    "004:287": DIFF_TRAINER,
    "004:299": CONFIGURING,
    "004:338": METRICS,
    "004:369": case(contains("epoch", "[4 rows x "), before=RESULT),
    "004:375": case(
        says("3 4"),
        before=RESULT,
        after="print(result.checkpoint.to_dict()['epoch'], len(result.best_checkpoints))\n",
    ),
    "004:390": case(contains("TorchTrainer_"), before=RESULT),
    "004:405": DATASET,
    "004:471": REPORTING,
    "004:508": case(the_state_shown),
    "004:566": case(the_state_shown, environment="tensorflow"),
    "004:613": case(a_checkpoint_s_path, before=RESULT),
    "004:627": case(says("")),
    "004:650": case(the_checkpoints_shown),
    "004:695": case(the_state_shown),
    "004:769": case(the_state_shown, environment="tensorflow"),
    "004:869": case(the_rows_shown),
    "004:913": case(
        a_share,
        # The page is of a torchmetrics that took the task from the values.
        put=(("(preds, target)", "(preds, target, task='multiclass', num_classes=5)"),),
    ),
    "004:1039": case(as_shown),
    "004:1083": case(
        says("True"),
        before="from ray import train\nimport ray.train.torch\n" + MODEL,
        after="    train.report({'finite': bool(torch.isfinite(loss))})\n"
        + TORCH
        + "print(TorchTrainer(train_func).fit().metrics['finite'])\n",
        put=(("range(90)", "range(2)"), ("in dataloader", "in data_loader")),
    ),
    "004:1126": case(
        says("True"),
        before="from ray import train\nimport ray.train.torch\n" + MODEL,
        after="    train.report({'deterministic': torch.are_deterministic_algorithms_enabled()})\n"
        + TORCH
        + "print(TorchTrainer(train_func).fit().metrics['deterministic'])\n",
    ),
}


def completed(name: str) -> str:
    language, text = BLOCKS[name]
    code = after_the_change(text) if language == "diff" else text
    entry = CASES[name]
    for placeholder, value in entry.put:
        assert placeholder in code, (name, placeholder)
        code = code.replace(placeholder, value)
    return entry.before + code + entry.after


def test_every_block_has_a_case() -> None:
    assert [name for name, (language, _) in BLOCKS.items() if language != "bash"] == list(CASES)


@pytest.mark.skipif(not PAGES.exists(), reason="the pages are not beside this checkout")
def test_the_blocks_are_those_of_the_pages() -> None:
    assert cut(PAGES) == BLOCKS


def run_blocks(directory: Path, codes: dict[str, str]) -> dict[str, str]:
    """What each block prints, in one ``lockstep run``."""
    (directory / "runner.py").write_text(RUNNER)
    (directory / "blocks.json").write_text(json.dumps(codes))
    for tracker in ("wandb", "mlflow"):
        (directory / f"{tracker}.py").write_text(TRACKER)
    (directory / "...").write_text("x\n" + "\n".join(map(str, range(40))) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", "run", "runner.py", "blocks.json"],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(SRC),
            "LOCKSTEP_STORAGE": str(directory / "results"),
            "LOCKSTEP_WARM": "0",
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for part in re.split(r"^=== ", done.stdout, flags=re.MULTILINE)[1:]:
        name, _, text = part.partition("\n")
        lines = [line for line in text.split("\n") if not line.startswith("[lockstep]")]
        found[name] = "\n".join(lines).strip("\n")
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "environment",
    [
        "main",
        pytest.param("tensorflow", marks=pytest.mark.environment("tensorflow")),
        pytest.param("horovod", marks=pytest.mark.environment("horovod")),
    ],
)
def test_blocks_print_what_the_pages_show(environment: str, tmp_path: Path) -> None:
    names = [name for name, entry in CASES.items() if entry.environment == environment]
    printed = run_blocks(tmp_path, {name: completed(name) for name in names})
    wrong = []
    for name in names:
        try:
            CASES[name].check(printed[name], BLOCKS[name][1])
        except Exception as error:
            wrong.append(f"block {name}: {type(error).__name__}: {error}\n{printed[name]}")
    assert not wrong, "\n\n".join(wrong)
