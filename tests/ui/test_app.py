"""The dashboard over HTTP: who is let in, what it answers, that it only reads."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockstep import cli
from lockstep.console.dashboard import dashboard_address, dashboard_command
from lockstep.storage import open_storage
from lockstep.ui import app as app_module
from lockstep.ui.app import Closing, make_app
from lockstep.ui.library import Library
from lockstep.ui.places import Root
from lockstep.ui.views import RunsView, RunView, SearchView
from tests.repository import ROOT, SRC
from tests.ui.journals import MadeRun, made_experiment

TOKEN = "a-long-token"
COOKIE = {"cookie": f"lockstep_ui={TOKEN}"}


class Dashboard:
    """The application, asked without a port."""

    def __init__(self, root: Path) -> None:
        self.library = Library([Root(open_storage(str(root)), str(root))])
        while self.library._round():
            pass
        self.closing = Closing()
        self.app = make_app(self.library, TOKEN, {"127.0.0.1", "box"}, self.closing)

    def ask(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            address = "http://127.0.0.1:8300"
            async with httpx.AsyncClient(transport=transport, base_url=address) as client:
                return await client.request(method, path, headers=headers)

        return asyncio.run(ask())

    def events(self, view: Any, count: int) -> list[dict[str, Any]]:
        """The first messages of a stream."""

        async def read() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            stream: AsyncIterator[bytes] = app_module._stream(self.library, view, self.closing)
            async for chunk in stream:
                if chunk.startswith(b"data: "):
                    found.append(json.loads(chunk[6:]))
                if len(found) == count:
                    self.closing.close()
            return found

        return asyncio.run(read())


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    made = MadeRun(tmp_path / "root")
    made.report({"loss": 1.0})
    return made


@pytest.fixture
def dashboard(run: MadeRun) -> Dashboard:
    return Dashboard(run.path.parents[1])


# ---------------------------------------------------------------------------------- who is let in


def test_the_token_becomes_a_cookie(dashboard: Dashboard) -> None:
    page = dashboard.ask(f"/?token={TOKEN}")
    assert page.status_code == 200
    cookie = page.headers["set-cookie"]
    assert cookie.startswith(f"lockstep_ui={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert dashboard.ask("/", **COOKIE).status_code == 200
    assert "set-cookie" not in dashboard.ask("/", **COOKIE).headers


@pytest.mark.parametrize(
    ("path", "cookie"),
    [
        ("/", ""),
        ("/?token=", ""),
        ("/?token=wrong", ""),
        ("/?token=w%C3%A4", ""),
        ("/", "lockstep_ui=wrong"),
        ("/", "lockstep_ui"),
        ("/api/diagnosis?id=x", "other=1"),
        (f"/api/diagnosis?token={TOKEN}", ""),
        (f"/static/app.js?token={TOKEN}", ""),
        ("/static/app.js", ""),
    ],
)
def test_nobody_else_is_let_in(dashboard: Dashboard, path: str, cookie: str) -> None:
    answer = dashboard.ask(path, **({"cookie": cookie} if cookie else {}))
    assert answer.status_code == 403
    assert "needs its token" in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8300", "", "[::2]:8300"])
def test_another_name_for_this_machine_is_refused(dashboard: Dashboard, host: str) -> None:
    answer = dashboard.ask("/", host=host, **COOKIE)
    assert answer.status_code == 403
    assert "--allow-host" in answer.text


def test_an_allowed_name_on_any_port_is_answered(dashboard: Dashboard) -> None:
    assert dashboard.ask("/", host="BOX:9999", **COOKIE).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_pages_of_others_are_refused(
    dashboard: Dashboard, run: MadeRun, headers: dict[str, str]
) -> None:
    path = f"/api/stacks?id={run.id}"
    answer = dashboard.ask(path, "POST", **headers, **COOKIE)
    assert answer.status_code == 403
    assert "only its own pages" in answer.text
    own = {"origin": "http://127.0.0.1:8300", "sec-fetch-site": "same-origin"}
    assert dashboard.ask(path, "POST", **own, **COOKIE).status_code == 200


def test_every_answer_has_a_strict_policy(dashboard: Dashboard) -> None:
    for answer in (dashboard.ask("/"), dashboard.ask("/static/app.js", **COOKIE)):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    static = SRC / "lockstep" / "ui" / "static"
    texts = [*static.glob("*.*"), *static.glob("pages/*")]
    assert len(texts) > 8
    for path in texts:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
        assert "innerHTML" not in text, path
        assert "<style" not in text, path


# ------------------------------------------------------------------------------- what it answers


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/vendor/preact.LICENSE",
        "/api/diagnosis?id=0:../../etc",
        "/api/diagnosis?id=/etc",
        "/api/logs?id=0:..&rank=0&text=a",
        "/api/logs?id=RUN&rank=../../x&text=a",
        "/api/logs?id=RUN&rank=-1&text=a",
        "/api/logs?id=RUN&rank=0",
        "/api/checkpoint?id=RUN&checkpoint=../..",
        "/api/checkpoint?id=RUN&checkpoint=9",
        "/api/series?id=nothing&name=report:loss",
        "/api/events?view=other",
        "/etc/passwd",
    ],
)
def test_no_address_leads_to_a_file(dashboard: Dashboard, run: MadeRun, path: str) -> None:
    answer = dashboard.ask(path.replace("RUN", run.id), **COOKIE)
    assert answer.status_code == 404


def test_only_what_is_asked_for_can_be_posted(dashboard: Dashboard, run: MadeRun) -> None:
    assert dashboard.ask(f"/api/stacks?id={run.id}", **COOKIE).status_code == 405
    for method in ("POST", "PUT", "DELETE"):
        assert dashboard.ask(f"/api/diagnosis?id={run.id}", method, **COOKIE).status_code == 405


def test_charts_logs_checkpoints_and_diagnosis(tmp_path: Path, run: MadeRun) -> None:
    run.event("checkpoint", id=0, name="checkpoint_000000", index=1, score=None, uploaded=True)
    run.event("checkpoint", id=1, name="../..", index=1, score=None, uploaded=True)
    (run.path / "checkpoint_000000" / "deep").mkdir(parents=True)
    (run.path / "checkpoint_000000" / "deep" / "model.pt").write_bytes(b"\x80\x04.")
    (run.path / "checkpoint_000000" / ".lockstep_checkpoint.json").write_text("{}")
    (run.path / "logs").mkdir()
    (run.path / "logs" / "rank_0.log").write_text("one\n<b>two</b>\n")
    dashboard = Dashboard(tmp_path / "root")

    def json_of(path: str) -> Any:
        answer = dashboard.ask(path.replace("RUN", run.id), **COOKIE)
        assert answer.status_code == 200
        return answer.json()

    (line,) = json_of("/api/series?id=RUN&name=report:loss&low=0&high=9")["lines"]
    assert line["values"] == [1.0]
    assert json_of("/api/series?id=RUN&name=report:loss&low=nan&high=x")["lines"][0] == line
    found = json_of("/api/logs?id=RUN&rank=0&text=TWO")
    assert found == {"lines": [[2, "<b>two</b>"]], "more": False}
    assert json_of("/api/checkpoint?id=RUN&checkpoint=0")["files"] == [
        {"name": "deep/model.pt", "size": 3}
    ]
    path = f"/api/checkpoint?id={run.id}&checkpoint=1"
    assert dashboard.ask(path, **COOKIE).status_code == 404
    text = dashboard.ask(f"/api/diagnosis?id={run.id}", **COOKIE)
    assert text.headers["content-type"].startswith("text/plain")
    assert "reports:    1" in text.text


def test_stacks_of_a_run_that_does_not_run_are_a_sentence(
    dashboard: Dashboard, run: MadeRun
) -> None:
    answer = dashboard.ask(f"/api/stacks?id={run.id}", "POST", **COOKIE).json()
    assert "has workers on node" in answer["error"]
    assert dashboard.ask("/api/stacks?id=0:x", "POST", **COOKIE).status_code == 404


def test_a_stream_begins_with_what_there_is_and_goes_on(dashboard: Dashboard, run: MadeRun) -> None:
    view = RunsView(dashboard.library)
    (message,) = dashboard.events(view, 1)
    assert message["rows"][0]["id"] == run.id
    dashboard.closing.now = False
    dashboard.library.start()
    try:
        run.report({"loss": 0.5})
        (message,) = dashboard.events(view, 1)
        assert message["rows"][0]["reports"] == 2
    finally:
        dashboard.library.close()


def test_logs_are_streamed(dashboard: Dashboard, run: MadeRun) -> None:
    (run.path / "logs").mkdir()
    (run.path / "logs" / "rank_1.log").write_text("hello\n")
    view = app_module._LogsView(dashboard.library, run.id)
    assert dashboard.events(view, 1) == [
        {"type": "logs", "rank": 1, "lines": ["hello"], "unended": ""}
    ]


def test_nothing_is_written_and_nothing_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    run = MadeRun(tmp_path / "root")
    run.report({"loss": 1.0})
    made_experiment(tmp_path / "root", 2)
    for name in ("trainer.pkl", "return_value.bin"):
        (run.path / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")
    before = _tree(tmp_path / "root")
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "Unpickler", None)
    dashboard = Dashboard(tmp_path / "root")
    for view in (
        RunsView(dashboard.library),
        RunView(dashboard.library, run.id),
        SearchView(dashboard.library, "0:search"),
    ):
        assert list(view.news())
    dashboard.ask(f"/api/diagnosis?id={run.id}", **COOKIE)
    assert _tree(tmp_path / "root") == before


def _tree(root: Path) -> dict[str, tuple[int, int]]:
    paths = sorted(root.rglob("*"))
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


# ------------------------------------------------------------------------------------ the command


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``lockstep ui`` as a process; its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lockstep", "ui", *arguments, "--json"],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"], process
    finally:
        process.terminate()
        process.wait(timeout=150)
        if process.stdout is not None:
            process.stdout.close()


def test_the_command_serves_until_it_is_ended(run: MadeRun) -> None:
    with serving(str(run.path.parents[1]), "--port", "0") as (address, process):
        assert address.startswith("http://127.0.0.1:")
        with httpx.Client(timeout=150) as client:
            assert client.get(address).status_code == 200
            events = address.partition("?")[0] + "api/events?view=runs"
            with client.stream("GET", events) as stream:
                for line in stream.iter_lines():
                    if run.id in line:
                        break
        # The displays of runs find it, as long as it runs.
        assert dashboard_address(str(run.path)) == address
        assert dashboard_address("/elsewhere") is None
        file = Path(tempfile.gettempdir()) / f"lockstep-ui-{os.getuid()}.json"
        assert file.stat().st_mode & 0o777 == 0o600
        process.terminate()
        process.wait(timeout=150)
    assert dashboard_address(str(run.path)) is None
    assert not file.exists()


def test_wrong_arguments_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["ui", str(tmp_path), "--port", "99999"])
    assert "argument --port: 99999 is greater than 65535" in capsys.readouterr().err
    assert cli.main(["ui", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["ui", str(tmp_path), "--port", port]) == 1
    assert "give another --port" in capsys.readouterr().err
    assert cli.main(["ui", str(tmp_path), "--host", "192.0.2.1"]) == 1  # of no machine
    assert "cannot listen on 192.0.2.1: " in (said := capsys.readouterr().err)
    assert "give another --host" in said


def test_the_panels_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_STORAGE", "/home/ada/results")
    assert dashboard_command("/home/ada/results/digits/x") == "lockstep ui"
    assert dashboard_command("/data/my runs/x") == "lockstep ui '/data/my runs/x'"
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(tempfile.gettempdir(), f"lockstep-ui-{os.getuid()}.json"))
    assert dashboard_address("/home/ada/results/digits/x") is None


def test_the_libraries_are_what_their_hashes_say() -> None:
    script = ROOT / "scripts" / "vendor_ui.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout
