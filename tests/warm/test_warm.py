"""The warm server from its user's side: when it is used, what it learns, how it ends."""

from __future__ import annotations

import fcntl
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockstep.warm.client import connect
from lockstep.warm.messages import receive, send
from tests.repository import SRC
from tests.warm.warm_runs import LIMIT_S, Warm

SHOW = "import os, sys; print(os.getpid(), 'lockstep.engine.warm_server' in sys.modules)"


def is_warm(warm: Warm, *arguments: str, **options: object) -> bool:
    done = warm.run(*arguments, "-c", SHOW, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1] == "True"


def reason(warm: Warm) -> str:
    """Why a start was not warm; empty if it was."""
    done = warm.run("-v", "-c", SHOW)
    assert done.returncode == 0
    assert "True" in done.stdout or "ordinary start" in done.stderr
    return done.stderr.partition("ordinary start: ")[2].strip()


def test_the_first_start_is_cold_and_the_next_is_warm(warm: Warm) -> None:
    assert reason(warm) == "no warm server runs yet."
    warm.wait_until(warm.status)
    done = warm.run("-v", "-c", SHOW)
    pid, is_forked = done.stdout.split()
    assert is_forked == "True"
    assert done.stderr == f"lockstep run: warm start, process {pid}.\n"
    (status,) = warm.status()
    assert status["served"] == 1
    assert status["memory"] > 0
    assert "lockstep" in status["packages"]


def test_it_can_be_switched_off(running: Warm) -> None:
    environment = {**running.environment, "LOCKSTEP_WARM": "0"}
    done = running.run("-v", "-c", SHOW, env=environment)
    assert "False" in done.stdout
    assert done.stderr == "lockstep run: ordinary start: LOCKSTEP_WARM=0.\n"


def test_a_traced_process_starts_as_usual(running: Warm, tmp_path: Path) -> None:
    """As a coverage tool does, which starts with the interpreter."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif len(sys.argv) > 1: sys.setprofile(lambda *_: None)\n"
    )
    path = f"{tmp_path}:{running.environment['PYTHONPATH']}"
    done = running.run("-v", "-c", SHOW, env={**running.environment, "PYTHONPATH": path})
    assert "False" in done.stdout
    assert "a coverage tool runs in this process" in done.stderr


def test_status_and_stop(warm: Warm) -> None:
    pid = warm.start()

    def say(*arguments: str) -> str:
        return subprocess.run(
            warm.command("warm", *arguments),
            env=warm.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_S,
        ).stdout

    assert f"process {pid}" in say()
    assert "packages:" in say("--status")
    assert say("--stop") == f"Stopped the warm server, process {pid}.\n"
    assert not warm.is_locked()
    assert say("--stop") == "No warm server runs.\n"
    assert say().startswith("No warm server runs.")


def test_it_ends_when_nobody_uses_it(tmp_path: Path) -> None:
    warm = Warm(tmp_path / "runtime", LOCKSTEP_WARM_IDLE_S="0")
    warm.run("-c", "pass")
    warm.wait_until(lambda: list(warm.runtime.glob("lockstep/*/variables")))  # it has listened
    warm.wait_until(lambda: not warm.is_locked() and not warm.sockets())


def test_it_ends_when_its_directory_is_removed_as_at_logout(warm: Warm) -> None:
    pid = warm.start()
    for path in warm.sockets():
        path.unlink()
    warm.wait_until(lambda: not Path(f"/proc/{pid}").exists() or not warm.is_locked())


# What goes wrong.


def test_a_stale_socket_is_no_server(warm: Warm) -> None:
    pid = warm.start()
    os.kill(pid, signal.SIGKILL)
    warm.wait_until(lambda: not warm.is_locked())
    assert warm.sockets()  # nobody has removed it
    assert "does not answer" in reason(warm)
    warm.wait_until(warm.status)  # another one was started
    assert is_warm(warm)


def test_a_stopped_server_is_not_waited_for(warm: Warm) -> None:
    pid = warm.start()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "is stopped" in reason(warm)
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("sent", ["nothing", "run"])
def test_a_client_that_goes_away_harms_nobody(warm: Warm, sent: str) -> None:
    warm.start()
    with connect(str(warm.sockets()[0])) as client:
        if sent == "run":
            client.sendall(b"\0\0\0\5hello")
    assert is_warm(warm)


def test_a_server_that_is_killed_at_any_step_means_an_ordinary_start(warm: Warm) -> None:
    os.kill(warm.start(), signal.SIGKILL)
    warm.wait_until(lambda: not warm.is_locked())
    (path,) = warm.sockets()
    path.unlink()

    def serve(step: str) -> None:
        with listener.accept()[0] as client:
            if step == "accepted":
                return
            receive(client)
            if step == "garbage":
                client.sendall(b"\0\0\0\5hello")
            elif step in ("ready", "go"):
                send(client, "ready")
            if step == "go":
                message = receive(client)
                assert message is not None
                for fd in message[2]:
                    os.close(fd)

    with path.with_suffix(".lock").open() as lock, socket.socket(socket.AF_UNIX) as listener:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that nobody starts another server
        directory = os.open(path.parent, os.O_PATH)  # the whole path may be too long for a socket
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)
        listener.listen()
        for step in ("accepted", "asked", "garbage", "ready", "go"):
            server = threading.Thread(target=serve, args=(step,))
            server.start()
            done = warm.run("-v", "-c", SHOW)
            server.join()
            assert done.stdout.endswith(" False\n"), (step, done)
            assert done.stderr.startswith("lockstep run: ordinary start: the "), (step, done.stderr)


def test_a_server_that_is_killed_does_not_end_what_it_started(warm: Warm) -> None:
    pid = warm.start()
    code = "import sys; print('up', flush=True); sys.stdin.read(); print('end'); sys.exit(7)"
    with warm.popen("-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as script:
        assert script.stdout is not None
        assert script.stdin is not None
        assert script.stdout.readline() == "up\n"
        os.kill(pid, signal.SIGKILL)
        warm.wait_until(lambda: not warm.is_locked())
        script.stdin.close()
        assert script.stdout.read() == "end\n"
    assert script.returncode == 7


def test_a_full_process_table_means_an_ordinary_start(tmp_path: Path) -> None:
    """A library makes every fork of the server fail, as the kernel does then."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "full_table.py").write_text(
        "import errno, os, sys\n"
        "real = os.fork\n"
        "def fork():\n"
        "    if sys._getframe(1).f_code.co_name != '_fork':  # not for a client\n"
        "        return real()\n"
        "    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "if 'lockstep.engine.warm_server' in sys.modules:\n"
        "    os.fork = fork\n"
    )
    warm = Warm(tmp_path / "runtime", PYTHONPATH=f"{SRC}:{library}")
    try:
        warm.run("-c", "import full_table")
        warm.wait_until(warm.status)
        assert reason(warm).startswith("the warm server could not fork: Resource temporarily")
    finally:
        warm.stop()


def test_a_directory_that_others_may_enter_is_not_used(warm: Warm) -> None:
    shared = warm.runtime / "lockstep"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    assert reason(warm) == f"{shared} is not a directory of this user alone (mode 0700)."
    assert not list(shared.iterdir())


def test_fifty_starts_at_once_make_one_server(warm: Warm) -> None:
    scripts = [
        warm.popen("-c", SHOW, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(50)
    ]
    ends = [script.communicate(timeout=10 * LIMIT_S) for script in scripts]
    assert [script.returncode for script in scripts] == [0] * 50, ends
    assert len({out.split()[0] for out, _ in ends}) == 50
    warm.wait_until(warm.status)
    assert len(warm.status()) == 1


def test_fifty_warm_starts_at_once(running: Warm) -> None:
    scripts = [running.popen("-c", SHOW, stdout=subprocess.PIPE) for _ in range(50)]
    outs = [script.communicate(timeout=10 * LIMIT_S)[0].split() for script in scripts]
    assert [script.returncode for script in scripts] == [0] * 50
    assert len({out[0] for out in outs}) == 50
    assert "True" in {out[1] for out in outs}  # all, unless the machine is very busy


def test_a_script_that_can_be_read_but_once_is_read_once(running: Warm, tmp_path: Path) -> None:
    pipe = tmp_path / "script"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("print('read')",))
    writer.start()
    done = running.run("-v", str(pipe))
    writer.join()
    assert done.stdout == "read\n", done.stderr
    assert "no regular file" in done.stderr


def test_output_that_cannot_be_written_is_an_error_at_the_end(running: Warm) -> None:
    def outcome(*command: str) -> tuple[int, str]:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*command, "-c", "print('lost')"],
                env=running.environment,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=LIMIT_S,
            )
        return done.returncode, done.stderr

    expected = outcome(sys.executable)
    assert expected[0] == 120
    assert outcome(*running.command("run")) == expected


def test_an_interpreter_s_options_are_kept() -> None:
    options = ["-X", "int_max_str_digits=5000", "-X", "no_debug_ranges", "-X", "dev", "-O"]
    code = "from lockstep.warm.identity import interpreter_flags; print(*interpreter_flags())"
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    words = done.stdout.split()
    assert set(options) <= set(words), done.stderr
    assert words.count("-X") == 3


# Which server is whose.


def test_another_environment_has_another_server(warm: Warm) -> None:
    pid = warm.start()
    other = {**warm.environment, "OMP_NUM_THREADS": "3"}
    assert not is_warm(warm, env=other)
    warm.wait_until(lambda: len(warm.status()) == 2)
    assert is_warm(warm, env=other)
    assert is_warm(warm)
    assert pid in {status["pid"] for status in warm.status()}


def test_an_edit_of_what_is_imported_replaces_the_server(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "numbers_library.py").write_text("VALUE = 1\n")
    warm = Warm(tmp_path / "runtime", PYTHONPATH=f"{SRC}:{library}")
    script = "import numbers_library; print(numbers_library.VALUE)"
    try:
        assert warm.run("-c", script).stdout == "1\n"
        warm.wait_until(warm.status)
        assert warm.run("-v", "-c", script).stderr.startswith("lockstep run: warm start")
        (library / "numbers_library.py").write_text("VALUE = 22\n")
        done = warm.run("-v", "-c", script)
        assert done.stdout == "22\n"
        assert "numbers_library.py has changed since" in done.stderr
        warm.wait_until(warm.status)
        assert warm.run("-c", script).stdout == "22\n"
        (library / "installed_later.py").write_text("")  # as an installation does
        assert f"{library} has changed" in reason(warm)
    finally:
        warm.stop()


def test_memory_in_huge_pages_has_what_it_had() -> None:
    code = (
        "from lockstep.engine.warm_libraries import _join_pages\n"
        "values = [str(number) for number in range(200_000)]\n"
        "block = bytearray(range(256)) * 40_000\n"
        "_join_pages()\n"
        "assert values == [str(number) for number in range(200_000)]\n"
        "assert block == bytearray(range(256)) * 40_000\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=LIMIT_S)
    assert done.returncode == 0


def test_one_run_s_secret_is_not_in_another(warm: Warm) -> None:
    secret = {**warm.environment, "API_TOKEN": "hunter2-in-the-first"}
    warm.run("-c", "pass", env=secret)  # starts the server
    warm.wait_until(warm.status)
    (status,) = warm.status()
    assert b"hunter2" not in Path(f"/proc/{status['pid']}/environ").read_bytes()
    code = (
        "import os\n"
        "needle = b'tsrif-eht-ni-2retnuh'  # backwards: it must not find itself\n"
        "assert 'API_TOKEN' not in os.environ\n"
        "memory = open('/proc/self/mem', 'rb', 0)\n"
        "for line in open('/proc/self/maps'):\n"
        "    place, mode, *_ = line.split()\n"
        "    if 'w' in mode and 'r' in mode:\n"
        "        begin, end = (int(part, 16) for part in place.split('-'))\n"
        "        memory.seek(begin)\n"
        "        assert needle not in memory.read(end - begin)[::-1], line\n"
        "print('nothing')\n"
    )
    done = warm.run("-v", "-c", code)
    assert done.stdout == "nothing\n", done.stderr
    assert "warm start" in done.stderr


# What it imports.


@pytest.fixture
def library(tmp_path: Path) -> Path:
    directory = tmp_path / "site-packages"
    directory.mkdir()
    return directory


def loaded_before(warm: Warm, names: list[str], cwd: Path) -> list[str]:
    """Which of these modules are preloaded; none is to be seen before the script asks."""
    code = (
        "import sys\n"
        f"names = {names}\n"
        "assert not sys.modules.keys() & set(names)\n"
        "(finder,) = [one for one in sys.meta_path if hasattr(one, 'expose')]\n"
        "print(*[name for name in names if name in finder.modules])\n"
    )
    done = warm.run("-c", code, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_it_learns_libraries_and_never_the_user_s_code(library: Path, tmp_path: Path) -> None:
    (library / "some_library").mkdir()
    (library / "some_library" / "__init__.py").write_text("")
    (library / "some_library" / "part.py").write_text("")
    (library / "other_library.py").write_text("import os\nos.environ['MADE_BY_OTHER'] = '1'\n")
    (tmp_path / "own_module.py").write_text("")
    names = ["some_library", "some_library.part", "other_library", "own_module"]
    warm = Warm(tmp_path / "runtime", PYTHONPATH=f"{SRC}:{library}")
    try:
        warm.run("-c", "import some_library.part, own_module", cwd=tmp_path)
        warm.wait_until(warm.status)
        assert loaded_before(warm, names, tmp_path) == names[:2]
        # A warm script teaches the server what it has not had, also where another one had written
        # it down, too late for the server.
        (known,) = (tmp_path / "runtime").glob("lockstep/*/learnt")
        learnt = marshal.loads(known.read_bytes())
        learnt["modules"].append("other_library")
        known.write_bytes(marshal.dumps(learnt))
        warm.run("-c", "import other_library", cwd=tmp_path)
        warm.wait_until(lambda: any("other_library" in one["packages"] for one in warm.status()))
        assert loaded_before(warm, names, tmp_path) == names[:3]
    finally:
        warm.stop()


def test_a_module_of_the_script_s_own_is_not_hidden_by_a_library(
    library: Path, tmp_path: Path
) -> None:
    (library / "helpers.py").write_text("")
    warm = Warm(tmp_path / "runtime", PYTHONPATH=f"{SRC}:{library}")
    show = "import helpers; print(helpers.__file__)"
    own = tmp_path / "project"
    own.mkdir()
    (own / "helpers.py").write_text("")
    (own / "train.py").write_text(show)
    try:
        warm.run("-c", show)
        warm.wait_until(warm.status)
        ended = warm.run("-v", "-c", show)
        assert ended.stdout == f"{library / 'helpers.py'}\n"
        assert "warm start" in ended.stderr
        for arguments in (["project/train.py"], ["-c", show]):
            cwd = tmp_path if len(arguments) == 1 else own
            ended = warm.run("-v", *arguments, cwd=cwd)
            assert ended.stdout == f"{own / 'helpers.py'}\n"
            assert "ordinary start" in ended.stderr
            assert "has a 'helpers' of its own" in ended.stderr
    finally:
        warm.stop()


def test_a_variable_that_a_library_reads_is_one_that_matters(library: Path, tmp_path: Path) -> None:
    (library / "reader.py").write_text("import os\nHOME = os.environ.get('READER_HOME')\n")
    place = {"PYTHONPATH": f"{SRC}:{library}", "READER_HOME": "/first"}
    warm = Warm(tmp_path / "runtime", **place)
    show = "import reader, sys; print(reader.HOME, 'lockstep.engine.warm_server' in sys.modules)"
    try:
        warm.start()
        # The server has neither the library nor the variable: the script brings both.
        assert warm.run("-c", show).stdout == "/first True\n"
        warm.wait_until(lambda: any("reader" in one["packages"] for one in warm.status()))
        assert loaded_before(warm, ["reader"], tmp_path) == ["reader"]
        assert warm.run("-c", show).stdout == "/first True\n"
        other = {**warm.environment, "READER_HOME": "/second"}
        assert warm.run("-c", show, env=other).stdout == "/second False\n"
        assert warm.run("-c", show).stdout == "/first True\n"
    finally:
        warm.stop()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "import threading\n"
            "threading.Thread(target=threading.Event().wait, daemon=True).start()\n",
            "it starts threads",
        ),
        ("import os\nkept = open(__file__)\n", "it opens files"),
        ("import subprocess\nkept = subprocess.Popen(['sleep', '1000'])\n", "it starts processes"),
        ("import grpc\n", "it imports grpc"),
    ],
    ids=["thread", "file", "process", "grpc"],
)
def test_what_cannot_be_forked_is_found_out(
    library: Path, tmp_path: Path, text: str, why: str
) -> None:
    (library / "fine.py").write_text("")
    (library / "grpc.py").write_text("")
    guard = "import sys\nif 'lockstep.engine.warm_server' in sys.modules:\n"
    body = "".join(f"    {line}\n" for line in text.splitlines())
    (library / "unsafe.py").write_text(guard + body)
    warm = Warm(tmp_path / "runtime", PYTHONPATH=f"{SRC}:{library}")
    try:
        warm.run("-c", "import fine, unsafe")
        warm.wait_until(warm.status)
        (status,) = warm.status()
        assert status["unsafe"]["unsafe"].startswith(why)
        assert loaded_before(warm, ["fine", "unsafe", "grpc"], tmp_path) == ["fine"]
    finally:
        warm.stop()


# Signals, exits, and the terminal.


def test_a_signal_to_the_command_reaches_the_script(running: Warm) -> None:
    code = (
        "import os, signal, sys\n"
        "def end(number, frame):\n"
        "    os.write(1, b'got %d\\n' % number)\n"
        "    sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "os.write(1, b'up\\n')\n"
        "while True: signal.pause()\n"
    )
    with running.popen("-c", code, stdout=subprocess.PIPE) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "up\n"
        script.send_signal(signal.SIGTERM)
        assert script.stdout.read() == f"got {int(signal.SIGTERM)}\n"
    assert script.returncode == 5


UP = "import os, signal; print(os.getpid(), flush=True)\nwhile True: signal.pause()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_the_command_ends_by_the_script_s_signal(running: Warm, number: signal.Signals) -> None:
    # The suite may have been started with nohup, which has its processes ignore SIGHUP.
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n" + UP
    with running.popen("-c", code, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as script:
        assert script.stdout is not None
        pid = int(script.stdout.readline())
        os.kill(pid, number)
    assert script.returncode == -number


def test_the_script_is_killed_with_the_command(running: Warm) -> None:
    with running.popen("-c", UP, stdout=subprocess.PIPE) as script:
        assert script.stdout is not None
        pid = int(script.stdout.readline())
        script.kill()
    running.wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_without_its_keeper_the_script_ends(running: Warm) -> None:
    code = "import os; print(os.getppid(), flush=True)\n" + UP
    with running.popen("-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as script:
        assert script.stdout is not None
        assert script.stderr is not None
        keeper, pid = (int(script.stdout.readline()) for _ in range(2))
        assert b"lockstep run: keeper" in Path(f"/proc/{keeper}/cmdline").read_bytes()
        os.kill(keeper, signal.SIGKILL)
        assert "was killed" in script.stderr.read()
    assert script.returncode == 1
    running.wait_until(lambda: not Path(f"/proc/{pid}").exists())
