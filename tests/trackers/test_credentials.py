"""A missing library or credential is an error in the driver, before anything starts."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import train
from lockstep.air.integrations.comet import setup_comet
from lockstep.callback import Callback, TrialSnapshot
from lockstep.trackers import (
    CometLoggerCallback,
    MLflowLoggerCallback,
    TBXLoggerCallback,
    WandbLoggerCallback,
)
from lockstep.trackers.mlflow_client import Login
from lockstep.trackers.wandb import wandb_settings
from tests.integration.runs import trainer
from tests.trackers import readers
from tests.trackers.installed import need

need("comet_ml", "mlflow", "tensorboardX", "wandb")

# Importing the libraries takes long on a busy machine.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def no_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    lockstep.shutdown()


def never() -> None:
    raise AssertionError("no worker may start")


def refused(callback: Callback, error: type[Exception], match: str) -> None:
    storage = Path(os.environ["LOCKSTEP_STORAGE"], "refused")
    with pytest.raises(error, match=match):
        trainer(never, callbacks=[callback], name="refused").fit()
    assert not storage.exists()


def init(**variables: str) -> None:
    lockstep.init(runtime_env={"env_vars": variables})


def test_wandb_without_a_key_is_refused() -> None:
    advice = r"no API key: give api_key or api_key_file, run `wandb login`.*runtime_env.*offline"
    refused(WandbLoggerCallback(project="p"), ValueError, advice)


def test_comet_without_a_key_is_refused() -> None:
    refused(CometLoggerCallback(), ValueError, r"Comet has no API key.*COMET_API_KEY.*online=False")


def test_databricks_without_a_login_is_refused() -> None:
    advice = r"databricks configure --token.*DATABRICKS_CONFIG_FILE"
    refused(MLflowLoggerCallback("databricks"), ValueError, advice)


def test_a_key_file_that_was_deleted_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 40)
    callback = WandbLoggerCallback(api_key_file=file)
    file.unlink()
    refused(callback, FileNotFoundError, "there is no such file")


def test_where_wandb_finds_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "k" * 40
    file = tmp_path / "key"
    file.write_text(f"{key}\n")
    WandbLoggerCallback(api_key=key).check_before_run()
    WandbLoggerCallback(api_key_file="~/key").check_before_run()
    WandbLoggerCallback(mode="offline").check_before_run()
    with monkeypatch.context() as patch:
        patch.setenv("WANDB_API_KEY", key)
        WandbLoggerCallback().check_before_run()
    with monkeypatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        WandbLoggerCallback().check_before_run()
    WandbLoggerCallback(settings={"mode": "offline"}).check_before_run()
    WandbLoggerCallback(settings={"api_key": key}).check_before_run()
    init(WANDB_API_KEY=key)
    WandbLoggerCallback().check_before_run()
    lockstep.shutdown()
    import wandb

    host = wandb.Settings().base_url.removeprefix("https://")
    (tmp_path / ".netrc").write_text(f"machine {host} login user password {key}\n")
    (tmp_path / ".netrc").chmod(0o600)
    WandbLoggerCallback().check_before_run()


def test_where_comet_finds_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CometLoggerCallback(api_key="k").check_before_run()
    CometLoggerCallback(online=False).check_before_run()
    with monkeypatch.context() as patch:
        patch.setenv("COMET_API_KEY", "k")
        CometLoggerCallback().check_before_run()
    init(COMET_API_KEY="k")
    CometLoggerCallback().check_before_run()
    lockstep.shutdown()
    (tmp_path / ".comet.config").write_text("[comet]\napi_key=k\n")
    CometLoggerCallback().check_before_run()


def test_where_mlflow_finds_a_databricks_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MLflowLoggerCallback("http://127.0.0.1:1").check_before_run()
    MLflowLoggerCallback().check_before_run()
    (tmp_path / "shared.cfg").write_text("[DEFAULT]\nhost = https://example.com\ntoken = t\n")
    init(DATABRICKS_CONFIG_FILE=str(tmp_path / "shared.cfg"))
    MLflowLoggerCallback("databricks").check_before_run()
    lockstep.shutdown()
    monkeypatch.setenv("DATABRICKS_HOST", "https://example.com")
    MLflowLoggerCallback("databricks://profile").check_before_run()


def test_callbacks_use_what_init_has_set_for_workers(
    tmp_path: Path, libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's own environment has none of these variables."""
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
    uri = f"file:{tmp_path}/mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:nowhere")
    init(
        WANDB_MODE="offline",
        WANDB_DIR=str(tmp_path),
        WANDB_API_KEY="k" * 40,
        COMET_PROJECT_NAME="from init",
        MLFLOW_TRACKING_URI=uri,
        MLFLOW_TRACKING_PASSWORD="secret",
    )

    def one_report() -> None:
        train.report({"loss": 1.0})

    archives = tmp_path / "comet"
    callbacks = [
        WandbLoggerCallback(project="p"),
        CometLoggerCallback(online=False, offline_directory=str(archives)),
        MLflowLoggerCallback(),
    ]
    trainer(one_report, workers=1, callbacks=callbacks).fit()
    assert wandb_settings(None).api_key == "k" * 40
    (run,) = readers.wandb_runs(tmp_path)
    assert [row["loss"] for row in run.history] == [1.0]
    (archive,) = archives.glob("*.zip")
    with zipfile.ZipFile(archive) as file:
        assert json.loads(file.read("experiment.json"))["project_name"] == "from init"
    assert list(tmp_path.glob("mlruns/0/*/metrics/loss"))
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == ""
    assert os.environ["MLFLOW_TRACKING_URI"] == "file:nowhere"


@pytest.fixture
def logins() -> Iterator[tuple[str, list[str | None]]]:
    """A server that refuses every request: its address, and the login of each request."""
    seen: list[str | None] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()
        thread.join()


def test_a_login_of_mlflow_ends_with_what_it_is_for(
    logins: tuple[str, list[str | None]], libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, seen = logins
    trial = TrialSnapshot("4913f_00000", "train", "/results/run", "experiment")
    before = dict(os.environ)

    def ask(callback: MLflowLoggerCallback) -> str | None:
        with pytest.raises(Exception, match="403"):
            callback.open_run(trial)
        assert dict(os.environ) == before
        return seen[-1]

    init(MLFLOW_TRACKING_URI=uri, MLFLOW_TRACKING_TOKEN="first", MLFLOW_EXPERIMENT_NAME="e")
    assert ask(MLflowLoggerCallback()) == "Bearer first"
    lockstep.shutdown()
    init(MLFLOW_TRACKING_URI=uri)
    assert ask(MLflowLoggerCallback(experiment_name="e")) is None
    assert ask(MLflowLoggerCallback(experiment_name="e", tracking_token="own")) == "Bearer own"
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "the driver's")
    before["MLFLOW_TRACKING_TOKEN"] = "the driver's"
    assert ask(MLflowLoggerCallback(experiment_name="e")) == "Bearer the driver's"


def test_logins_that_overlap_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "MLFLOW_TRACKING_TOKEN"
    monkeypatch.delenv(name, raising=False)
    first, second, third = Login("1"), Login("2"), Login(None)
    with ExitStack() as one, ExitStack() as two:
        one.enter_context(first)
        two.enter_context(second)
        assert os.environ[name] == "2"
        one.close()
        assert os.environ[name] == "2"
        one.enter_context(third)
        one.enter_context(first)
        two.close()
        assert os.environ[name] == "1"
    assert name not in os.environ


def test_a_variable_that_changes_during_a_login_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "MLFLOW_TRACKING_TOKEN"
    monkeypatch.setenv(name, "before")
    with Login("own"):
        monkeypatch.setenv(name, "theirs")
    assert os.environ[name] == "theirs"
    with Login("theirs"):
        monkeypatch.delenv(name)
    assert name not in os.environ


def test_arguments_that_comet_does_not_know_are_refused_before_the_run() -> None:
    wrong = r"\(display_summary=False\): Comet's .* no such argument; .*display_summary_level.*work"
    callback = CometLoggerCallback(online=False, display_summary=False)
    refused(callback, TypeError, f"CometLoggerCallback{wrong}")
    with pytest.raises(TypeError, match=f"setup_comet{wrong}"):
        setup_comet(online=False, display_summary=False)
    twice = CometLoggerCallback(online=False, project="a", project_name="b")
    refused(twice, TypeError, "both project and project_name")


def test_comets_other_name_for_a_project(tmp_path: Path, libraries: None) -> None:
    callback = CometLoggerCallback(online=False, offline_directory=str(tmp_path), project="mine")
    callback.check_before_run()
    trial = TrialSnapshot("4913f_00000", "train", "/results/run", "experiment")
    callback.open_run(trial).end("finished")
    (archive,) = tmp_path.glob("*.zip")
    with zipfile.ZipFile(archive) as file:
        assert json.loads(file.read("experiment.json"))["project_name"] == "mine"


@pytest.mark.parametrize(
    ("make", "arguments", "error", "match"),
    [
        (WandbLoggerCallback, {"api_key": "k", "api_key_file": "f"}, ValueError, "both given"),
        (WandbLoggerCallback, {"api_key": " "}, ValueError, "api_key is empty"),
        (WandbLoggerCallback, {"api_key_file": "nowhere"}, FileNotFoundError, "no such file"),
        (WandbLoggerCallback, {"id": "mine"}, ValueError, "the callback chooses it"),
        (WandbLoggerCallback, {"excludes": "loss"}, TypeError, "expected a list"),
        (CometLoggerCallback, {"experiment_key": "k"}, ValueError, "the callback chooses it"),
        (CometLoggerCallback, {"tags": "one"}, TypeError, "expected a list"),
        (MLflowLoggerCallback, {"tags": ["one"]}, TypeError, "expected a dict"),
    ],
)
def test_wrong_arguments_are_refused_when_given(
    make: Any, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make(**arguments)


@pytest.mark.parametrize(
    ("make", "package"),
    [
        (MLflowLoggerCallback, "mlflow"),
        (WandbLoggerCallback, "wandb"),
        (CometLoggerCallback, "comet_ml"),
        (TBXLoggerCallback, "tensorboardX"),
    ],
)
def test_a_missing_library_is_named_with_its_install_command(
    make: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    absent = {package, "tensorboard"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else find(name)
    )
    with pytest.raises(ImportError, match=rf"{package}.*pip install"):
        make()
