"""A script in a warm process finds what it finds in a fresh one."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.warm.warm_runs import LIMIT_S, Warm

PROBE = """
import sys
MODULES = sorted(sys.modules)
import atexit, builtins, gc, json, locale, logging, multiprocessing, os, random, resource, signal
import stat, threading, time, warnings

def stream(one):
    if one is None:
        return None
    names = ("encoding", "errors", "line_buffering", "write_through", "newlines", "mode", "name")
    inner = [type(one.buffer).__name__, type(getattr(one.buffer, "raw", None)).__name__]
    return [getattr(one, name) for name in names] + inner + [one.isatty(), one.fileno()]

def files():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            kind = os.fstat(int(name))
        except OSError:
            continue
        text = os.readlink("/proc/self/fd/" + name)
        # Each process has pipes of its own to the test.
        text = text.partition(":")[0] if text.startswith("pipe:") else text
        found[name] = [text, stat.S_IFMT(kind.st_mode), os.get_inheritable(int(name))]
    return found

def status():
    wanted = ("Umask", "SigBlk", "SigIgn", "SigCgt", "SigPnd", "Threads", "Cap", "NoNewPrivs",
              "Seccomp", "Cpus_allowed", "Uid", "Gid", "Groups")
    return [line.strip() for line in open("/proc/self/status") if line.startswith(wanted)]

thread = threading.current_thread()
state = {
    "environment": dict(os.environ),
    "directory": os.getcwd(),
    "files": files(),
    "status": status(),
    "limits": open("/proc/self/limits").read(),
    "cgroup": open("/proc/self/cgroup").read(),
    "priority": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)],
    "affinity": sorted(os.sched_getaffinity(0)),
    "signals": {int(number): str(signal.getsignal(number)).split(" at ")[0]
                for number in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "threads": [thread.name, thread is threading.main_thread(), thread.native_id == os.getpid(),
                threading.active_count()],
    "processes": [multiprocessing.current_process().name, multiprocessing.active_children(),
                  str(multiprocessing.parent_process())],
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "executable": [sys.executable, sys.prefix, sys.base_prefix],
    "path": sys.path,
    "flags": [list(sys.flags), sys.warnoptions, sys._xoptions, sys.dont_write_bytecode],
    "hooks": [str(hook).split(" at ")[0] for hook in (sys.excepthook, sys.displayhook,
              sys.unraisablehook, sys.breakpointhook, sys.gettrace(), sys.getprofile())],
    # lockstep run adds finders: for scripts that import ray, and for what is preloaded.
    "import": [[str(finder).split(" at ")[0] for finder in sys.meta_path
                if not type(finder).__module__.startswith("lockstep.")],
               [str(hook).split(" at ")[0] for hook in sys.path_hooks]],
    "interpreter": [sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(),
                    gc.get_threshold(), gc.get_debug()],
    "streams": [stream(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
    "originals": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__,
                  sys.stderr is sys.__stderr__],
    "warnings": [str(one) for one in warnings.filters],
    "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False),
               sys.getfilesystemencoding()],
    "time": [time.tzname, time.timezone],
    "builtins": sorted(dir(builtins)),
    "logging": [logging.root.level, [str(one) for one in logging.root.handlers]],
    "main": sorted(name for name in globals() if name.startswith("__")),
    "atexit": atexit._ncallbacks(),
    "stdin": sys.stdin.read() if sys.stdin else None,
}
outcome = {"state": state, "modules": MODULES, "drawn": random.random(), "pid": os.getpid()}
with open(sys.argv[1], "w") as file:
    json.dump(outcome, file, default=str)
"""


def block_and_ignore() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})


def limit() -> None:
    os.umask(0o027)
    for kind, soft in ((resource.RLIMIT_NOFILE, 300), (resource.RLIMIT_STACK, 4 << 20)):
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


def close_stdin() -> None:
    os.close(0)


def state_of(command: list[str], directory: Path, **options: Any) -> dict[str, Any]:
    out = directory / "state.json"
    out.unlink(missing_ok=True)
    options = {"input": b"typed", **options}
    done = subprocess.run(
        [*command, str(out), "--rate", "0.1"], cwd=directory, timeout=LIMIT_S, **options
    )
    assert done.returncode == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}, id="pipes"),
        pytest.param({"stdout": subprocess.DEVNULL}, id="devnull"),
        pytest.param({"preexec_fn": block_and_ignore}, id="signals"),
        pytest.param({"preexec_fn": limit}, id="limits"),
        pytest.param({"preexec_fn": close_stdin, "input": None}, id="no stdin"),
        pytest.param({"pass_fds": True}, id="inherited files"),
        pytest.param(
            {"variables": {"TOKEN": "secret", "é": "ü\udcff", "EMPTY": ""}}, id="variables"
        ),
        pytest.param({"cron": True}, id="cron"),
    ],
)
def test_a_warm_process_is_like_a_fresh_one(
    running: Warm, tmp_path: Path, options: dict[str, Any]
) -> None:
    options = dict(options)
    (tmp_path / "probe.py").write_text(PROBE)
    flags = options.pop("flags", [])
    variables = options.pop("variables", {})
    environment = {**running.environment, **variables}
    if options.pop("cron", False):  # nothing but what cron sets, in a session of its own
        kept = ("HOME", "LOGNAME", "PATH", "PYTHONPATH", "XDG_RUNTIME_DIR", "SHELL")
        environment = {name: environment[name] for name in kept if name in environment}
        options["start_new_session"] = True
    with open(tmp_path / "other", "w") as other:
        if options.pop("pass_fds", False):
            options["pass_fds"] = [other.fileno()]
        options["env"] = environment
        fresh = state_of([sys.executable, *flags, "probe.py"], tmp_path, **options)
        warm = state_of([*running.command("run", flags=flags), "probe.py"], tmp_path, **options)
    if not options.get("start_new_session"):  # cron may have another locale than the tests
        assert "lockstep.engine.warm_server" in warm["modules"]
    for name in fresh["state"]:
        assert warm["state"][name] == fresh["state"][name], name
    assert set(fresh["modules"]) <= set(warm["modules"])
    assert warm["drawn"] != fresh["drawn"]
