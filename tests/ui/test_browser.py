"""The dashboard in Chromium, over runs that continue during the test."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.driving import wait_until
from tests.repository import SRC
from tests.ui.journals import MadeRun, made_experiment

pytestmark = [pytest.mark.environment("ui"), pytest.mark.timeout(300)]

PATIENCE_MS = 40_000
"""For a machine that is busy; nothing here waits for it where the page is as expected."""

SCRIPT = """
import sys, time
from pathlib import Path
from lockstep import train

def step_by_step(config):
    # A report for each file that the test creates; the last one ends the run.
    go, rank = Path(config["go"]), train.get_context().get_world_rank()
    step = 0
    while not (go / "end").exists():
        step += 1
        while not (go / str(step)).exists() and not (go / "end").exists():
            time.sleep(0.02)
        print(f"step {step} of rank {rank}", flush=True)
        train.log({"grad": step * 1.0}, step=step)
        train.report({"loss": 1 / step, "val": {"acc": step / 100}})

train.DataParallelTrainer(
    step_by_step,
    train_loop_config={"go": sys.argv[2]},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        name="live", storage_path=sys.argv[1], verbose=0, hang_warning_s=None
    ),
).fit()
"""

FAILING = """
import sys
from lockstep import train

def fail():
    train.report(
        {"loss": 2.0}, checkpoint=train.Checkpoint.from_dict({"weights": [0.0] * 100})
    )
    if train.get_context().get_world_rank() == 1:
        raise ValueError("the loss is not a number")
    train.report({"loss": 1.0})

train.DataParallelTrainer(
    fail,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        name="broken", storage_path=sys.argv[1], verbose=0, hang_warning_s=None
    ),
).fit()
"""

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>'\"`${alert(3)}"


@contextmanager
def process(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        text=True,
        **options,
    )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(timeout=60)
        for stream in (started.stdout, started.stderr):
            if stream is not None:
                stream.close()


class Site:
    """A dashboard, and a run that takes a step when it is told to."""

    def __init__(self, root: Path, address: str, go: Path) -> None:
        self.root = root
        self.address = address
        self.go = go
        self.steps = 0

    def step(self) -> int:
        self.steps += 1
        (self.go / str(self.steps)).touch()
        return self.steps


@pytest.fixture(scope="module")
def browser(session_environment: None) -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path is not None, "there is no Chromium: apt-get install chromium"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def site(session_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root, go = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("go")
    hostile = MadeRun(root, "evil", config={"train_loop_config": {EVIL: EVIL}}, trainer=EVIL)
    hostile.report({EVIL: 1.0, "loss": 1.0})
    hostile.report({EVIL: 2.0, "loss": 2.0})
    hostile.end("failed")
    (hostile.path / "logs").mkdir()
    (hostile.path / "logs" / "rank_0.log").write_text(f"{EVIL}\n\x1b]0;title\x07{EVIL}\n")
    made_experiment(root, 1000)
    with process("-c", FAILING, str(root), stderr=subprocess.DEVNULL) as failing:
        assert failing.wait(timeout=100) != 0
    with (
        process("-c", SCRIPT, str(root), str(go)) as live,
        process(
            "-m", "lockstep", "ui", str(root), "--port", "0", "--json", stdout=subprocess.PIPE
        ) as server,
    ):
        assert server.stdout is not None
        for _ in range(6000):  # processes that start during a test would be that test's
            if any('"attempt"' in one.read_text() for one in root.glob("live/*/journal.jsonl")):
                break
            time.sleep(0.01)
        yield Site(root, json.loads(server.stdout.readline())["address"], go)
        (go / "end").touch()
        live.wait(timeout=60)


class Opened:
    """A page of the dashboard. What goes wrong in it fails the test."""

    def __init__(self, page: Any, site: Site) -> None:
        self.page = page
        self.problems: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(f"a dialog: {dialog.message}"))
        page.goto(site.address)

    def _said(self, said: Any) -> None:
        if said.type == "error":
            self.problems.append(said.text)

    def open_run(self, name: str) -> Any:
        self.page.evaluate("location.hash = '#/'")
        self.page.get_by_role("link", name=name, exact=True).click()
        self.page.get_by_role("heading", level=1, name=name).wait_for()
        return self.page


@pytest.fixture
def opened(browser: Any, site: Site) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1300, "height": 850})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    found = Opened(context.new_page(), site)
    yield found
    context.close()
    assert found.problems == []


def expect(what: Any) -> Any:
    from playwright.sync_api import expect

    return expect(what)


def test_the_table_of_runs(opened: Opened) -> None:
    page = opened.page
    expect(page.locator("tbody tr")).to_have_count(4)
    assert page.url.endswith("/")  # the token is not in the address any more
    row = page.locator("tr", has_text="broken")
    expect(row).to_contain_text("failed")
    expect(row).to_contain_text("ValueError: the loss is not a number")
    expect(page.locator("tr", has_text="search")).to_contain_text("1,000 trials")
    page.get_by_role("button", name=re.compile("^Failed")).click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name=re.compile("^All")).click()
    page.get_by_role("searchbox").fill("brok")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.get_by_role("heading", name="No run fits")).to_be_visible()
    page.get_by_role("button", name="show all 4").click()
    page.get_by_role("button", name="Name").click()
    expect(page.locator("tbody tr a.run-name").first).to_have_text("broken")
    page.get_by_label("Group").check()
    expect(page.locator("tr.group")).to_have_count(3)
    page.get_by_label("Group").uncheck()
    page.get_by_role("combobox").select_option("loss")
    expect(page.locator("svg.spark").first).to_be_visible()


def test_what_is_reported_appears_while_the_page_is_open(opened: Opened, site: Site) -> None:
    step = site.step()
    page = opened.open_run("live")
    expect(page.locator(".under").first).to_contain_text(f"{step} report")
    for _ in range(3):
        step = site.step()
        expect(page.locator(".under").first).to_contain_text(f"{step} report")
    loss = page.locator("figure", has_text="loss").first
    expect(loss.locator("b").first).to_have_text(f"{1 / step:.5g}")
    expect(page.locator("figure", has_text="val/acc")).to_be_visible()
    expect(page.locator("figure", has_text="train.log")).to_contain_text("grad")
    wait_until(lambda: page.locator("figure canvas").first.evaluate(DRAWN))
    page.get_by_label("All ranks").check()
    expect(loss).to_contain_text("rank 1")
    page.get_by_label("Log scale").check()
    page.get_by_role("button", name="Time", exact=True).click()
    page.get_by_label("Smooth").fill("0.5")
    expect(page.get_by_role("heading", name="Who is late")).to_be_visible()


DRAWN = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return data.some(value => value !== 0);
}"""


def test_a_chart_is_zoomed_with_the_mouse(opened: Opened, site: Site) -> None:
    page = opened.open_run("evil")
    chart = page.locator("figure", has_text="loss").last
    box = chart.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40, steps=5)
    page.mouse.up()
    chart.get_by_role("button", name="Whole").click()
    expect(chart.get_by_role("button", name="Whole")).to_have_count(0)


def test_a_failed_run_says_why_and_its_diagnosis_is_copied(opened: Opened) -> None:
    page = opened.open_run("broken")
    expect(page.get_by_role("alert")).to_contain_text("ValueError: the loss is not a number")
    expect(page.locator("pre", has_text="Traceback").first).to_contain_text("in fail")
    page.get_by_role("button", name="Copy diagnosis").click()
    expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
    text = page.evaluate("navigator.clipboard.readText()")
    assert "state:      failed" in text
    assert "Traceback" in text
    assert "python:" in text
    page.get_by_role("button", name="Show").first.click()
    expect(page.locator("ul.files")).to_contain_text("dict_checkpoint")


def test_workers_have_logs_stacks_and_samples(opened: Opened, site: Site) -> None:
    page = opened.open_run("live")
    page.get_by_role("link", name="Workers and logs").click()
    step = site.step()
    log = page.locator("pre.log")
    expect(log).to_contain_text(f"step {step} of rank 0")
    page.get_by_role("group", name="Rank").get_by_role("button", name="1").click()
    expect(log).to_contain_text(f"step {step} of rank 1")
    page.get_by_role("searchbox").fill(f"STEP {step} OF")
    expect(log.locator("mark")).to_have_text(f"step {step} of")
    expect(page.locator("figure", has_text="Memory of each rank")).to_contain_text("MB")
    page.get_by_role("button", name="Stacks now").click()
    expect(page.locator("details pre").first).to_contain_text("step_by_step")


def test_an_experiment_with_a_thousand_trials(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("link", name="search", exact=True).click()
    expect(page.locator(".under")).to_contain_text("1,000 trials")
    expect(page.locator(".under")).to_contain_text("334 ended by the scheduler")
    rows = page.locator("tbody tr:not(.space)")
    expect(rows.first).to_contain_text("0.")
    assert rows.count() < 100  # the rest is drawn when it is scrolled to
    expect(page.locator("ul.bars li").first).to_contain_text("lr")
    expect(page.get_by_role("heading", name="Parallel coordinates")).to_be_visible()
    page.get_by_role("button", name="Trial", exact=True).click()
    expect(rows.first).to_contain_text("abcde_00000")
    page.keyboard.press("End")
    expect(page.locator("tr", has_text="abcde_00999")).to_be_visible()
    page.locator("tr", has_text="abcde_00998").get_by_role("checkbox").check()
    page.locator("tr", has_text="abcde_00999").get_by_role("checkbox").check()
    page.get_by_role("link", name="Compare 2 trials").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare 2 runs")
    expect(page.locator("tr", has_text="width")).to_contain_text("80")
    expect(page.locator("figure", has_text="loss")).to_be_visible()


def test_what_runs_contain_is_shown_as_text(opened: Opened) -> None:
    page = opened.page
    expect(page.locator("tr", has_text="onerror")).to_be_visible()
    opened.open_run("evil")
    expect(page.locator("figure").first).to_contain_text(EVIL)
    expect(page.locator("pre.json")).to_contain_text("onerror=alert(1)")
    page.get_by_role("link", name="Workers and logs").click()
    expect(page.locator("pre.log")).to_contain_text(EVIL)
    assert page.locator("img").count() == 0
    assert page.title() != "title"


@pytest.mark.parametrize("name", ["", "?token=wrong"])
def test_a_wrong_token_shows_nothing(browser: Any, site: Site, name: str) -> None:
    page = browser.new_page()
    try:
        answer = page.goto(site.address.partition("?")[0] + name)
        assert answer.status == 403
        expect(page.locator("body")).to_contain_text("needs its token")
        assert page.goto(site.address.partition("?")[0] + "api/events?view=runs").status == 403
    finally:
        page.close()


def test_the_keyboard_is_enough(opened: Opened) -> None:
    page = opened.page
    expect(page.locator("tbody tr")).to_have_count(4)
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("e")  # broken, live, search, evil
    page.keyboard.press("Escape")
    for _ in range(2):
        page.keyboard.press("j")
    page.keyboard.press("k")
    row = page.locator("tbody tr").first
    expect(row).to_have_class(re.compile(r"\bat\b"))
    name = row.locator("a.run-name").inner_text()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("g")
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible(browser: Any, site: Site, scheme: str, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    site.step()
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1300, "height": 850})
    try:
        page = Opened(context.new_page(), site).page
        expect(page.locator("tbody tr")).to_have_count(4)
        links = dict(
            page.locator("a.run-name").evaluate_all("e => e.map(a => [a.textContent, a.hash])")
        )
        live = links["live"].removeprefix("#/run/")
        broken = links["broken"].removeprefix("#/run/")
        pages = {
            "runs": ("#/", "tbody tr"),
            "run": (links["live"], "figure canvas"),
            "failed": (links["broken"], "pre"),
            "workers": (links["live"] + "/workers", "pre.log"),
            "experiment": (links["search"], "tbody tr"),
            "compare": (f"#/compare?id={live}&id={broken}", "figure canvas"),
            "missing": ("#/run/nothing", ".empty"),
        }
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(246, 247, 249)") is (scheme == "light")
        for name, (address, ready) in pages.items():
            page.evaluate("hash => { location.hash = hash }", address)
            page.locator(ready).first.wait_for()
            (tmp_path / f"{name}.png").write_bytes(page.screenshot(full_page=True))
            found = Axe().run(page)
            assert found.violations_count == 0, f"{name}: {found.generate_report()}"
    finally:
        context.close()


def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, site: Site) -> None:
    site.step()
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    try:
        opened = Opened(context.new_page(), site)
        expect(opened.page.locator("tbody tr")).to_have_count(4)
        for name in ("broken", "live"):
            page = opened.open_run(name)
            page.locator("figure canvas").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page = opened.open_run("search")
        expect(page.get_by_role("button", name="loss")).to_be_visible()  # the score of each trial
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert opened.problems == []
    finally:
        context.close()


def test_a_page_says_that_the_dashboard_has_ended(browser: Any, site: Site) -> None:
    command = ("-m", "lockstep", "ui", str(site.root), "--port", "0", "--json")
    with process(*command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        page = browser.new_page()
        try:
            page.goto(json.loads(server.stdout.readline())["address"])
            expect(page.get_by_text("live", exact=True).first).to_be_visible()
            server.terminate()
            server.wait(timeout=60)
            expect(page.locator(".connection")).to_contain_text("connection lost")
        finally:
            page.close()
