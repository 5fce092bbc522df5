"""Take the pictures of the dashboard that README and the pages show.

    .venv-ui/bin/python -m scripts.ui_pictures       # renews docs/images/ui-*.png

Real runs are made in a temporary directory: one that continues, one that fails, others that have
ended, and a search. Chromium then looks at them. The environment is the one of ``make test-ui``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WAIT_MS = 60_000
DRAWN_MS = 2_500
"""How long charts may take to appear: nothing on the page says when the last one is drawn."""

RUN = """
import json, math, random, sys, time
from lockstep import train

def train_func(config):
    rank = train.get_context().get_world_rank()
    noise = random.Random(rank)
    for epoch in range(config["epochs"]):
        time.sleep(config["seconds"] * (1 + 0.3 * rank * noise.random()))
        loss = 20 * config["lr"] * math.exp(-epoch / 20) + 0.05 * noise.random()
        print(f"epoch {epoch} loss {loss:.4f}")
        train.log({"gradient_norm": noise.random()}, step=epoch)
        metrics = {"loss": loss, "accuracy": 1 - loss / 2, "val/loss": loss * 1.1}
        kept = train.Checkpoint.from_dict({"weights": [0.0] * 1000}) if epoch % 10 == 9 else None
        train.report(metrics, checkpoint=kept)
        if epoch == config.get("fails_at") and rank == 1:
            raise ValueError("the loss is not finite: nan in layer 3")

root, name, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
train.DataParallelTrainer(
    train_func,
    train_loop_config=config,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name=name, storage_path=root, verbose=0),
).fit()
"""

SEARCH = """
import math, random, sys
from lockstep import train, tune

def objective(config):
    noise = random.Random(config["seed"])
    for epoch in range(20):
        far = (math.log10(config["lr"]) + 2.5) ** 2 * 0.1 + 8 / config["width"]
        loss = far + math.exp(-epoch / 6) + 0.02 * noise.random()
        tune.report({"loss": loss + (0.2 if config["optimizer"] == "sgd" else 0)})

tune.Tuner(
    objective,
    param_space={
        "lr": tune.loguniform(1e-5, 1e-1),
        "width": tune.choice([16, 32, 64, 128]),
        "optimizer": tune.choice(["adam", "sgd", "lion"]),
        "seed": tune.randint(0, 1000),
    },
    tune_config=tune.TuneConfig(
        metric="loss",
        mode="min",
        num_samples=60,
        scheduler=tune.schedulers.ASHAScheduler(max_t=20, grace_period=3),
    ),
    run_config=train.RunConfig(name="lr-search", storage_path=sys.argv[1], verbose=0),
).fit()
"""


@contextmanager
def started(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process of this interpreter, which ends with the block."""
    process = subprocess.Popen([sys.executable, *command], text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def run(root: str, name: str, **config: float) -> list[str]:
    """The command of one run."""
    return ["-c", RUN, root, name, json.dumps(config)]


def finish(command: list[str]) -> None:
    """Run a command to its end. One of the runs fails, as it should."""
    subprocess.run([sys.executable, *command], check=False, capture_output=True)


def wait_for_reports(experiment: Path, count: int) -> None:
    """Wait until the run has something to show."""
    while not any(
        len(file.read_text().splitlines()) > count for file in experiment.rglob("progress.csv")
    ):
        time.sleep(0.1)


def take(address: str) -> None:
    """Take every picture."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def look(scheme: str) -> Any:
            page = browser.new_context(color_scheme=scheme).new_page()
            page.goto(address)
            page.wait_for_selector("tbody tr", timeout=WAIT_MS)
            return page

        def picture(page: Any, name: str, height: int, link: str = "") -> None:
            page.set_viewport_size({"width": 1280, "height": height})
            if link:
                page.evaluate("location.hash = '#/'")
                page.get_by_role("link", name=link, exact=True).click()
            page.wait_for_timeout(DRAWN_MS)
            page.screenshot(path=IMAGES / name)

        light = look("light")
        picture(light, "ui-runs.png", 430)
        picture(light, "ui-run.png", 1000, "cifar10-resnet18")
        picture(light, "ui-experiment.png", 1000, "lr-search")
        picture(look("dark"), "ui-dark.png", 900, "cifar10-vit")
        browser.close()


def main() -> None:
    """Make the runs, and take the pictures."""
    with tempfile.TemporaryDirectory() as root:
        finish(["-c", SEARCH, root])
        finish(run(root, "cifar10-baseline", lr=0.1, epochs=60, seconds=0.02))
        finish(run(root, "cifar10-warmup", lr=0.07, epochs=60, seconds=0.02))
        finish(run(root, "cifar10-vit", lr=0.12, epochs=60, seconds=0.02, fails_at=34))
        live = run(root, "cifar10-resnet18", lr=0.09, epochs=10_000, seconds=0.1)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        board = ("-m", "lockstep", "ui", root, "--json", "--port", "0")
        with started(*live, **quiet), started(*board, stdout=subprocess.PIPE) as shown:
            assert shown.stdout is not None
            wait_for_reports(Path(root) / "cifar10-resnet18", 40)
            take(json.loads(shown.stdout.readline())["address"])


if __name__ == "__main__":
    main()
