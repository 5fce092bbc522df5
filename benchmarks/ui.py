"""How long until a dashboard shows something: of few trials, of many, of a run with many rows?

Every system gets the same trials in its own format, is restarted for each sample, and is opened
in Chromium. Two times are taken: from the command to the first content, and from opening the page
of a server that answers. Content is a trial's row, or a chart of the run. The browser is driven by
the interpreter of ``.venv-ui`` (``make .venv-ui/.done``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import HERE, Against, Bench, Measurement, ProgramFailed, Reach, play

START = 1_750_000_000.0
REPORTS = 10
READY_S = 240.0
AS_FAST = Reach(1.0, "at least as fast")
SMALL = Reach(300.0, "under 300 MB")
UI_PYTHON = HERE.parent / ".venv-ui" / "bin" / "python"


def measure(bench: Bench) -> list[Measurement]:
    """The table's rows."""
    if not UI_PYTHON.exists():
        raise ProgramFailed(f"there is no {UI_PYTHON}: run make .venv-ui/.done")
    found = []
    for trials in (10, 1_000) if bench.quick else (10, 1_000, 10_000):
        places = _make_trials(bench, trials)
        found += _measure(bench, f"{trials:,} trials", places, bench.times(3, 1))
    rows = 50_000 if bench.quick else 1_000_000
    found += _measure(bench, f"a run of {rows:,} rows", _make_rows(bench, rows), bench.times(3, 1))
    return found


def _measure(
    bench: Bench, what: str, systems: dict[str, dict[str, Any]], times: int
) -> list[Measurement]:
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    notes: dict[str, str] = {}
    for _ in range(times):  # in turn: the machine's slower minutes are everybody's
        for name, system in systems.items():
            if name in notes:
                continue
            try:
                samples[name].append(_watch(system))
            except ProgramFailed as error:
                if name == "lockstep":
                    raise
                notes[name] = str(error)[:80]
            bench.say(f"  {what}: {name} {samples[name][-1:] or notes[name]}")
    ours = samples.pop("lockstep")
    rows = []
    for key, label, reach in (
        ("page", "from opening the page to the first content", Reach(1.0, "under 1 s")),
        ("command", "from the command to the first content", None),
    ):
        against = [
            Against(
                name,
                [one[key] for one in values],
                Reach(1.0, "at least as fast"),
                notes.get(name, ""),
            )
            for name, values in samples.items()
        ]
        rows.append(
            Measurement(f"{what}: {label}", "s", [one[key] for one in ours], reach, against)
        )
    memory = [one["memory"] for one in ours]
    against = [Against(name, [one["memory"] for one in v]) for name, v in samples.items()]
    rows.append(
        Measurement(
            f"{what}: the server's memory", "MB", memory, Reach(300.0, "under 300 MB"), against
        )
    )
    return rows


def _watch(system: dict[str, Any]) -> dict[str, float]:
    done = subprocess.run(
        [str(UI_PYTHON), __file__, "watch", json.dumps(system)],
        capture_output=True,
        text=True,
        timeout=READY_S + 60,
    )
    if done.returncode:
        raise ProgramFailed(done.stderr.strip().splitlines()[-1] if done.stderr else "failed")
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


# The program: starts one server, opens it, waits for its content.


def watch(system: dict[str, Any]) -> None:
    """Start a server and time the first content of its page."""
    from playwright.sync_api import sync_playwright

    port = _free_port()
    command = [part.replace("PORT", str(port)) for part in system["command"]]
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        begun = time.perf_counter()
        server = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            env={**os.environ, **system.get("env", {})},
        )
        try:
            address = f"http://127.0.0.1:{port}/"
            if system.get("prints"):
                assert server.stdout is not None
                address = json.loads(server.stdout.readline())["address"]
            _await_answer(address, server)
            opened = time.perf_counter()
            page.goto(address + system["page"], wait_until="commit")
            content = page.locator(system["content"]).first
            while not content.is_visible():  # its own wait looks twice a second after a while
                if time.perf_counter() - opened > READY_S:
                    raise SystemExit("the page shows nothing")
                time.sleep(0.02)
            now = time.perf_counter()
            time.sleep(2.0)  # what it reads in the background counts, too
            print(
                json.dumps(
                    {"page": now - opened, "command": now - begun, "memory": _memory(server.pid)}
                )
            )
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            if server.stdout is not None:
                server.stdout.close()
            browser.close()


def _await_answer(address: str, server: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit("the server has ended")
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                return
            time.sleep(0.02)
    raise SystemExit("the server does not answer")


def _memory(group: int) -> float:
    """Proportional memory of a process group, in MB."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if os.getpgid(int(entry.name)) == group:
                text = (entry / "smaps_rollup").read_text()
                total += int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1])  # type: ignore[index]
    return total / 1000


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# The data: the same trials and rows in each system's own format.


def _loss(trial: int, report: int) -> float:
    return (trial * 7919 % 1000) / 1000 + 1 / report


def _config(trial: int) -> dict[str, Any]:
    return {"lr": 10 ** -(1 + trial % 5), "width": 16 * (1 + trial % 7)}


def _make_trials(bench: Bench, trials: int) -> dict[str, dict[str, Any]]:
    root = bench.work / f"ui-{trials}"
    bench.say(f"  writing {trials:,} trials")
    _lockstep_trials(root / "lockstep" / "search", trials)
    systems = {
        "lockstep": {
            "command": [
                sys.executable,
                "-m",
                "lockstep",
                "ui",
                str(root / "lockstep"),
                "--port",
                "PORT",
                "--json",
            ],
            "prints": True,
            "page": "#/experiment/0%3Asearch",
            "content": "tbody tr a",
        },
        "TensorBoard": _tensorboard(root / "tensorboard", trials, REPORTS),
        "MLflow": _mlflow(root / "mlflow", trials, REPORTS),
    }
    optuna = _optuna(bench, root / "optuna", trials)
    if optuna is not None:
        systems["optuna-dashboard"] = optuna
    return systems


def _make_rows(bench: Bench, rows: int) -> dict[str, dict[str, Any]]:
    root = bench.work / f"ui-rows-{rows}"
    bench.say(f"  writing a run of {rows:,} rows")
    directory = root / "lockstep" / "long" / "TorchTrainer_abcde_00000_0_2025-06-15_12-00-00"
    _lockstep_run(directory, "long", "abcde_00000", {"train_loop_config": {}}, rows, None)
    run = f"0%3Along%2F{directory.name}"
    return {
        "lockstep": {
            "command": [
                sys.executable,
                "-m",
                "lockstep",
                "ui",
                str(root / "lockstep"),
                "--port",
                "PORT",
                "--json",
            ],
            "prints": True,
            "page": f"#/run/{run}",
            "content": "figure canvas",
        },
        "TensorBoard": _tensorboard(root / "tensorboard", 1, rows),
        "MLflow": _mlflow(root / "mlflow", 1, rows),
    }


def _command(root: Path) -> list[str]:
    place = str(root / "lockstep")
    return [sys.executable, "-m", "lockstep", "ui", place, "--port", "PORT", "--json"]


def _lockstep_trials(place: Path, trials: int) -> None:
    place.mkdir(parents=True)
    header = {"name": "search", "experiment_id": "f" * 32, "metric": "loss", "mode": "min"}
    lines: list[dict[str, Any]] = [
        {"event": "experiment", "version": 1, **header, "num_trials": trials, "time": START}
    ]
    for number in range(trials):
        trial_id = f"abcde_{number:05d}"
        directory = f"objective_{trial_id}_{number}_2025-06-15_12-00-00"
        about = {"trial_id": trial_id, "index": number, "time": START + number}
        tag = {"experiment_tag": str(number), "directory": directory}
        lines.append({"event": "trial", **about, "config": _config(number), **tag})
        lines += [{"event": "status", **about, "status": s} for s in ("RUNNING", "TERMINATED")]
        _lockstep_run(place / directory, "search", trial_id, _config(number), REPORTS, number)
    lines.append({"event": "end", "state": "finished", "time": START + trials})
    (place / "experiment.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))


def _lockstep_run(
    path: Path, name: str, trial_id: str, config: dict[str, Any], rows: int, number: int | None
) -> None:
    path.mkdir(parents=True)
    header = {
        "version": 1, "trial_id": trial_id, "experiment_id": "f" * 32, "experiment_tag": "0",
        "experiment_name": name, "trainer": "TorchTrainer", "config": config,
        "checkpoint_config": {"num_to_keep": None}, "time": START, "directory": str(path),
    }  # fmt: skip
    if number is not None:
        header["trial"] = {"index": number}
    worker = {"rank": 0, "pid": 1, "hostname": "node", "node_ip": "", "started": 1}
    first = [
        {"event": "run", **header},
        {
            "event": "attempt",
            "attempt": 1,
            "workers": [worker],
            "warmup_time": 0.5,
            "iteration": 0,
            "time": START,
        },
    ]
    with (path / "journal.jsonl").open("w") as file:
        file.writelines(json.dumps(one, separators=(",", ":")) + "\n" for one in first)
        for index in range(1, rows + 1):
            row = {
                "event": "report", "index": index, "attempt": 1, "attempt_index": index,
                "iteration": index, "time": START + index, "time_this_iter": 1.0,
                "time_since_start": float(index), "worker_time": int(START),
                "worker_time_this_iter": 1.0, "checkpoint": None,
                "ranks": [{"loss": _loss(number or 0, index)}], "busy": [1.0],
            }  # fmt: skip
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
        end = {"event": "end", "state": "finished", "time": START + rows}
        file.write(json.dumps(end, separators=(",", ":")) + "\n")


def _tensorboard(place: Path, trials: int, rows: int) -> dict[str, Any]:
    from tensorboardX import SummaryWriter

    for number in range(trials):
        writer = SummaryWriter(str(place / f"trial_{number:05d}"), flush_secs=600, max_queue=10_000)
        for index in range(1, rows + 1):
            writer.add_scalar("loss", _loss(number, index), index, walltime=START + index)
        writer.close()
    return {
        "command": [
            sys.executable, "-m", "tensorboard.main", "--logdir", str(place), "--port", "PORT",
            "--host", "127.0.0.1",
        ],
        "page": "#timeseries",
        "content": "card-view",
    }  # fmt: skip


def _mlflow(place: Path, trials: int, rows: int) -> dict[str, Any]:
    place.mkdir(parents=True)
    address = f"sqlite:///{place}/mlflow.db"
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    code = (
        "import mlflow,sys; mlflow.set_tracking_uri(sys.argv[1]);"
        "e=mlflow.create_experiment('search', artifact_location=sys.argv[2]);"
        "mlflow.start_run(experiment_id=e, run_name='first');"
        "mlflow.log_metric('loss', 1.0); mlflow.log_param('lr', 1); mlflow.end_run(); print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, address, str(place / "artifacts")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        cwd=place,
    )
    experiment = done.stdout.split()[-1]
    _mlflow_rows(place / "mlflow.db", trials, rows)
    return {
        "command": [
            sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", address, "--port", "PORT",
            "--host", "127.0.0.1",
        ],
        "env": environment,
        "page": f"#/experiments/{experiment}/runs",
        "content": "text=/trial_\\d{5}/",
    }  # fmt: skip


def _mlflow_rows(path: Path, trials: int, rows: int) -> None:
    """Copies of the first run's rows, with SQL: through the client it would take an hour."""
    with sqlite3.connect(path) as database:
        database.row_factory = sqlite3.Row

        def copy(table: str, changes: Any) -> None:
            first = dict(database.execute(f"SELECT * FROM {table} LIMIT 1").fetchone())
            names = ", ".join(first)
            marks = ", ".join(f":{name}" for name in first)
            database.executemany(
                f"INSERT INTO {table} ({names}) VALUES ({marks})",
                ({**first, **change} for change in changes),
            )

        def run_id(number: int) -> str:
            return f"{number:032x}"

        start = int(START * 1000)
        copy(
            "runs",
            (
                {"run_uuid": run_id(n), "name": f"trial_{n:05d}", "start_time": start + n}
                for n in range(trials)
            ),
        )
        copy("params", ({"run_uuid": run_id(n), "key": "lr"} for n in range(trials)))
        copy(
            "tags",
            (
                {"run_uuid": run_id(n), "key": "mlflow.runName", "value": f"trial_{n:05d}"}
                for n in range(trials)
            ),
        )
        copy(
            "metrics",
            (
                {"run_uuid": run_id(n), "step": i, "value": _loss(n, i), "timestamp": start + i}
                for n in range(trials)
                for i in range(1, rows + 1)
            ),
        )
        copy(
            "latest_metrics",
            ({"run_uuid": run_id(n), "step": rows, "value": _loss(n, rows)} for n in range(trials)),
        )
    database.close()


def _optuna(bench: Bench, place: Path, trials: int) -> dict[str, Any] | None:
    python = bench.peers_python
    program = python.parent / "optuna-dashboard" if python else None
    if program is None or not program.exists():
        return None
    place.mkdir(parents=True)
    code = """
import optuna, sys
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
optuna.logging.set_verbosity(optuna.logging.ERROR)
storage = JournalStorage(JournalFileBackend(sys.argv[1]))
study = optuna.create_study(storage=storage, study_name="search")
real = optuna.distributions.FloatDistribution(1e-6, 1)
whole = optuna.distributions.IntDistribution(1, 1000)
study.add_trials(
    optuna.trial.create_trial(
        params={"lr": 10 ** -(1 + n % 5), "width": 16 * (1 + n % 7)},
        distributions={"lr": real, "width": whole},
        value=(n * 7919 % 1000) / 1000 + 1 / 10,
        intermediate_values={i: (n * 7919 % 1000) / 1000 + 1 / i for i in range(1, 11)},
    )
    for n in range(int(sys.argv[2]))
)
"""
    journal = place / "journal.log"
    command = [str(python), "-W", "ignore", "-c", code, str(journal), str(trials)]
    subprocess.run(command, check=True, timeout=600)
    return {
        "command": [str(program), str(journal), "--port", "PORT", "--host", "127.0.0.1"],
        "page": "dashboard/studies/0",
        "content": ".js-plotly-plot .main-svg",
    }


if __name__ == "__main__":
    play({"watch": watch})
