"""Every example runs as a user would run it, and prints what its docstring promises."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import ROOT

EXAMPLES = ROOT / "examples"

SHOWS = {
    "01_quickstart.py": ["accuracy:   0.9", "checkpoint: ", "run:        "],
    "02_resume.py": ["exited with code 1", "attempt 2", "continued at epoch 5"],
    "03_metrics_and_callbacks.py": ["callback: ", "mean loss 1.500", "log rows:   600"],
    "04_debug_in_process.py": ["same process: True"],
    "05_test_your_resume.py": [
        "load_momentum=True: Survives",
        "load_momentum=False: loss is",
        "attempts: [1, 1, 2, 3, 3, 3]",
    ],
    "06_amp.py": [
        "accuracy:    0.9",
        "computed in: torch.bfloat16",
        "answered in: torch.float32",
        "loaded:      Classifier, torch.float32",
    ],
    "07_torchmetrics.py": ["rank 1 saw 0.", "what each reports: True"],
    "08_fsdp_checkpoint.py": [
        "2 workers: shards [529, 432], epochs [1, 2]",
        "3 workers: shards [385, 288, 288], epochs [3, 4]",
        "__0_0.distcp __1_0.distcp __2_0.distcp",
    ],
    "09_lightning.py": ["3    64  0.9", "0.9 > 0.1: True"],
    "10_transformers.py": ["4.0    32 0.", "3 4 5 6 7"],
    "11_mlflow.py": [
        "train_experiment: FINISHED, params ['train_loop_config/num_epochs', ",
        "loss {1: 1.0, 2: 0.5, 3: 0.33}",
        "from_the_function: FINISHED, params ['num_epochs', 'tracking_uri']",
        "loss {0: 1.0, 1: 0.5, 2: 0.33}",
    ],
    "12_wandb.py": ["attempt 2", "from callback: ", "from function: ", "_00000 20"],
    "13_comet.py": [
        "callback: finished, loss {1: 0.6, 2: 0.3, 3:",
        "function: finished, loss {0: 0.6, 1: 0.3, 2:",
    ],
    "14_tensorboard.py": [
        "callback: loss at steps [1, 2, 3]",
        "lightning: train_loss at steps [0, 1, 2, 3, 4, 5]",
    ],
    "15_tensorflow.py": ["epochs: 2 and 3 more", "learned: [ 2. -1.]", "loaded: [ 2. -1.] 2"],
    "16_horovod.py": ["killed by SIGKILL", "4        2", "learned: [2.0, -1.0]"],
    "17_data.py": [
        "in 20 blocks",
        "split:      7747 + 1936 = 9683",
        "bias:       14.0",
        "tested:     1936 rows",
    ],
    "18_resume_mid_epoch.py": [
        "read in epoch 1 so far: 600 rows",
        "epoch 0: 1200 rows, each {1} time",
        "epoch 1: 1200 rows, each {1} time",
        "workers: [2, 2, 3]",
    ],
    "20_asha.py": ["48 trials in ", "accuracy: 0.9"],
    "23_going_back.py": [
        "Step 8, run again: Report 1 of attempt 2: loss is nan on rank 0. Since its last report",
        "has read rows 56 to 63 of its part of 'train' in this epoch. It comes again",
        "step 5 had x from 0.333 to 0.406",
        "from step 2: the same",
        "the fork went from step 7 to 12",
    ],
    "22_where_the_time_went.py": [
        "Rank 3 arrives last at",
        "10 reports of its own and 20 of its parent's, up to step 20",
    ],
    "21_pbt.py": ["alone:      0.39", "population: 1.", "replayed:   1."],
    "19_tune.py": ["trials:   12, failed: 0", "accuracy: 0.", "restored: 12 trials"],
}

# What a third party warns about on its own account.
IGNORES = {
    "09_lightning.py": "ignore:`isinstance(treespec, LeafSpec)` is deprecated:FutureWarning",
    "14_tensorboard.py": "ignore:`isinstance(treespec, LeafSpec)` is deprecated:FutureWarning",
}

NEEDS = {
    "09_lightning.py": "lightning",
    "10_transformers.py": "transformers",
    "11_mlflow.py": "mlflow",
    "12_wandb.py": "wandb",
    "13_comet.py": "comet_ml",
    "14_tensorboard.py": "lightning",
}

# Those whose framework has an environment of its own.
ELSEWHERE = {
    "15_tensorflow.py": pytest.mark.environment("tensorflow"),
    "16_horovod.py": pytest.mark.environment("horovod"),
}


def test_every_example_is_listed() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SHOWS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=ELSEWHERE.get(name, ())) for name in sorted(SHOWS)]
)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path / "results"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ignored = ["-W", IGNORES[name]] if name in IGNORES else []
    done = subprocess.run(
        [sys.executable, "-W", "error", *ignored, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    for text in SHOWS[name]:
        assert text in done.stdout + done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["results"]
