"""The local engine with real processes: how they start, what they share, and that they all end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.engine import GroupSpec
from lockstep.engine.base import Engine
from lockstep.engine.keeper import CLOSE_SIGNAL
from lockstep.engine.local import LocalEngine
from lockstep.errors import EngineError, InsufficientResourcesError
from lockstep.settings import THREAD_VARIABLES
from tests.engine.driving import driven, lives, members, wait_until

shared = LocalEngine()  # its fork server serves all tests of this module


@pytest.fixture(scope="module", autouse=True)
def _close_shared() -> Iterator[None]:
    yield
    shared.close()


@pytest.fixture
def engine() -> Engine:
    return shared


@pytest.fixture
def fresh() -> Iterator[LocalEngine]:
    """An engine for tests that spoil its server."""
    engine = LocalEngine()
    yield engine
    engine.close()


def test_each_worker_leads_a_group_of_its_own(engine: Engine) -> None:
    with driven(engine, "facts", size=3) as run:
        assert run.until_ended() == [0, 0, 0]
        facts = [messages[0] for messages in run.messages]
    assert all(fact["group"] == fact["pid"] for fact in facts)
    assert len({fact["pid"] for fact in facts}) == 3
    assert len({fact["server"] for fact in facts}) == 1
    assert facts[0]["server"] != os.getpid()


def test_directory_path_and_arguments_are_the_drivers(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_script.py").write_text("VALUE = 'found'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script.py", "--flag"])
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), tmp_path])
    with driven(engine, "facts") as run:
        run.until_ended()
        (fact,) = run.messages[0]
    assert fact["cwd"] == str(tmp_path)
    assert fact["path"] == [entry for entry in sys.path if isinstance(entry, str)]
    assert fact["argv"] == ["script.py", "--flag"]
    with driven(engine, "import_and_tell", payload=b"beside_the_script") as run:
        run.until_ended()
        assert run.messages[0] == ["found"]


def test_a_path_that_is_no_string_does_not_matter(
    fresh: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    with driven(fresh, "facts") as run:
        assert run.until_ended() == [0]


def test_a_path_longer_than_a_command_line(
    fresh: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [f"/nowhere/{'x' * 200}/{number}" for number in range(3000)]
    monkeypatch.setattr(sys, "path", [*sys.path, *long])
    with driven(fresh, "facts") as run:
        assert run.until_ended() == [0]
        assert run.messages[0][0]["path"] == sys.path


def test_processes_have_titles(fresh: LocalEngine) -> None:
    with driven(fresh, "family", size=2, payload=b"plain", title="nächster \tVersuch") as run:
        run.until_told()
        told = run.messages[1][0]
        forked = told["pids"][1]
        titles = {
            name: Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
            for name, pid in [("worker", told["pids"][0]), ("fork", forked), *told.items()]
            if isinstance(pid, int)
        }
        names = [Path(f"/proc/{pid}/comm").read_text() for pid in (told["pids"][0], told["server"])]
    me = os.getpid()
    assert titles == {
        "worker": "nächster  Versuch: rank 1 of 2 (lockstep worker)",
        "fork": "nächster  Versuch: rank 1 of 2 (lockstep worker), child",
        "server": f"lockstep fork server of process {me}",
        "keeper": f"lockstep fork server of process {me}: keeper",
    }
    assert names == ["nächster  Ve:1\n", "lockstep-server\n"]


def test_the_environment_is_there_before_the_first_import(
    fresh: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reads_environment.py").write_text(
        "import os\nVALUE = os.environ.get('READ_AT_IMPORT')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for preload in ((), ("reads_environment",)):
        for value in ("one", "two"):
            with driven(
                fresh,
                "import_and_tell",
                payload=b"reads_environment",
                preload=preload,
                environment={"READ_AT_IMPORT": value},
            ) as run:
                run.until_ended()
                assert run.messages[0] == [value]


def test_variables_that_no_preloaded_module_reads_need_no_server_of_their_own(
    fresh: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reads_one.py").write_text(
        "import os\nVALUE = os.environ.get('READ_AT_IMPORT')\nALL = dict(os.environ.items())"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    servers = {}
    for environment in (
        {},
        {"MINE": "one"},
        {"MINE": "two", "OTHER": "three"},
        {"READ_AT_IMPORT": "x"},
        {"OMP_NUM_THREADS": "1"},
        {"READ_AT_IMPORT": "x", "MINE": "four"},
    ):
        names = " ".join(["MINE", "OTHER", *environment])
        with driven(
            fresh, "facts", payload=names.encode(), preload=("reads_one",), environment=environment
        ) as run:
            assert run.until_ended() == [0]
        (facts,) = run.messages[0]
        expected = {name: environment.get(name) for name in names.split()}
        assert facts["environment"] == expected
        servers[tuple(environment.values())] = facts["server"]
    assert servers[()] == servers["one",] == servers["two", "three"]
    assert servers["x",] == servers["x", "four"] != servers[()]
    assert servers["1",] not in (servers[()], servers["x",])


def test_few_servers_stay_without_workers(fresh: LocalEngine) -> None:
    used = []
    with driven(fresh, "family", payload=b"plain", environment={"PYTHONHASHSEED": "0"}) as kept:
        kept.until_told()
        for number in range(1, 7):
            environment = {"PYTHONHASHSEED": str(number)}
            with driven(fresh, "facts", environment=environment) as run:
                assert run.until_ended() == [0]
            used.append(run.messages[0][0]["server"])
        assert len(set(used)) == 6
        wait_until(lambda: [lives(pid) for pid in used] == [False] * 3 + [True] * 3)
        assert lives(kept.messages[0][0]["server"])
        with driven(fresh, "facts", environment={"PYTHONHASHSEED": "4"}) as run:  # the oldest
            assert run.until_ended() == [0]
        assert run.messages[0][0]["server"] == used[3]
        with driven(fresh, "facts", environment={"PYTHONHASHSEED": "7"}) as run:
            assert run.until_ended() == [0]
        wait_until(lambda: [lives(pid) for pid in used[3:]] == [True, False, True])


def test_changes_to_the_drivers_environment_reach_later_workers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("one", "two"):
        monkeypatch.setenv("CHANGES_BETWEEN_RUNS", value)
        with driven(engine, "facts", payload=b"CHANGES_BETWEEN_RUNS") as run:
            run.until_ended()
            assert run.messages[0][0]["environment"] == {"CHANGES_BETWEEN_RUNS": value}


def test_a_preload_that_fails_is_no_error(
    fresh: LocalEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    with driven(fresh, "facts", preload=("no_such_module_anywhere",)) as run:
        assert run.until_ended() == [0]
    assert "could not preload no_such_module_anywhere" in capfd.readouterr().err


def test_random_generators_differ_between_ranks_and_runs(engine: Engine) -> None:
    seen = []
    for _ in range(2):
        with driven(engine, "randoms", size=2, preload=("numpy",)) as run:
            run.until_ended()
            seen += [messages[0] for messages in run.messages]
    assert len({python for python, _ in seen}) == 4
    assert len({numpy for _, numpy in seen}) == 4


def test_threads_per_worker(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with driven(engine, "facts", size=2, payload=b"OMP_NUM_THREADS") as run:
        run.until_ended()
        share = str(max(1, len(os.sched_getaffinity(0)) // 2))
        assert run.messages[0][0]["environment"] == {"OMP_NUM_THREADS": share}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with driven(engine, "facts", size=2, payload=b"OMP_NUM_THREADS") as run:
        run.until_ended()
        assert run.messages[1][0]["environment"] == {"OMP_NUM_THREADS": "7"}


@pytest.mark.parametrize("share", [1, 3])
def test_threads_of_a_library_that_was_loaded_before(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with driven(engine, "blas_threads", size=2, preload=("numpy",), cpus_per_worker=share) as run:
        run.until_ended()
    assert run.messages == [[({share}, 0)], [({share}, 0)]]  # none is started before it is needed


def test_the_users_number_of_threads_reaches_a_library_that_was_loaded_before(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = min(len(os.sched_getaffinity(0)), 64)  # NumPy's library is built for no more
    for chosen, threads in [
        ({}, cpus),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "4"}, 4),
        ({"OMP_NUM_THREADS": "5,2"}, 5),
        ({"MKL_NUM_THREADS": "7"}, cpus),
        ({"OMP_NUM_THREADS": "1"}, 1),
    ]:
        for name in THREAD_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in chosen.items():
            monkeypatch.setenv(name, value)
        with driven(engine, "blas_threads", preload=("numpy",)) as late:  # the server is there
            late.until_ended()
        with driven(engine, "blas_threads", preload=("numpy",), environment=chosen) as run:
            run.until_ended()
        assert late.messages == run.messages == [[({threads}, 0)]], chosen


def test_the_servers_number_of_threads_is_its_own(
    fresh: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with driven(fresh, "facts", payload=b"OPENBLAS_NUM_THREADS") as run:
        run.until_ended()
    (facts,) = run.messages[0]
    assert facts["environment"] == {"OPENBLAS_NUM_THREADS": None}
    server = Path(f"/proc/{facts['server']}/environ").read_bytes().split(b"\0")
    assert [line for line in server if line.startswith(b"OPENBLAS")] == [b"OPENBLAS_NUM_THREADS=1"]


def test_gpus_that_are_not_there(engine: Engine) -> None:
    with pytest.raises(InsufficientResourcesError, match="1000"):
        engine.check(GroupSpec(size=1, entry="x:y", payload=b"", gpus_per_worker=1000))


def test_workers_may_start_processes(engine: Engine) -> None:
    with driven(engine, "use_multiprocessing") as run:
        assert run.until_ended() == [0], run.text()
        assert run.messages[0] == [("fork", [2, 4, 6]), ("spawn", [2, 4, 6])]


def test_data_loader_workers(fresh: LocalEngine) -> None:
    environment = {"OMP_NUM_THREADS": "1"}
    with driven(fresh, "use_data_loader", preload=("torch",), environment=environment) as run:
        assert run.until_ended() == [0], run.text()
        assert run.messages[0] == [([[0, 1, 2, 3], [4, 5, 6, 7]], 1)]


def test_what_a_finished_worker_left_behind_ends(engine: Engine) -> None:
    with driven(engine, "leave_behind") as run:
        assert run.until_ended() == [0], run.text()
        (pids,) = run.messages[0]
        wait_until(lambda: not any(map(lives, pids)))


@pytest.mark.parametrize("how", ["return", "raise", "crash", "os._exit", "kill", "close"])
def test_processes_in_sessions_of_their_own_end_with_their_worker(engine: Engine, how: str) -> None:
    stays = how in ("kill", "close")
    with driven(engine, "leave_apart", payload=b"wait" if stays else how.encode()) as run:
        run.until_told()
        (pids,) = run.messages[0]
        if stays:
            assert all(map(lives, pids))
            getattr(run.group, how)()
        if how != "close":
            run.until_ended()
        wait_until(lambda: not any(map(lives, pids)))
    with driven(engine, "facts") as run:  # and the other workers do not
        assert run.until_ended() == [0]


def test_the_keeper_is_killed(fresh: LocalEngine) -> None:
    with driven(fresh, "family", size=2, payload=b"gil") as run:
        run.until_told()
        os.kill(run.messages[0][0]["keeper"], signal.SIGKILL)
        run.until_ended()
        pids = [pid for messages in run.messages for pid in messages[0]["pids"]]
        wait_until(lambda: not any(map(lives, [*pids, run.messages[0][0]["server"]])))
    with driven(fresh, "facts") as run:
        assert run.until_ended() == [0]


def test_exit_handlers_and_threads_run_at_the_end(engine: Engine) -> None:
    with driven(engine, "at_exit") as run:
        assert run.until_ended() == [0]
        assert run.text() == "function\nthread\nhandler 2\nhandler 1\n"


def test_streams(engine: Engine) -> None:
    with driven(engine, "print_odd") as run:
        assert run.until_ended() == [0]
        assert run.text() == "other name\nodd \\udc80\n"


def test_a_worker_may_close_its_output(engine: Engine) -> None:
    with driven(engine, "close_stdout") as run:
        run.until(lambda: run.messages[0] == ["closed"])
        run.group.send(0, "continue")
        assert run.until_ended() == [5]
        assert run.text() == "before\non stderr\n"


def test_closing_while_output_flows(engine: Engine) -> None:
    with driven(engine, "write_without_end", size=2) as run:
        run.until_told()
        started = time.monotonic()
        run.group.close()
        assert time.monotonic() - started < 100


def test_a_process_that_holds_the_output_open_does_not_hold_up_close(engine: Engine) -> None:
    with driven(engine, "leave_writer") as run:
        assert run.until_ended() == [0]
        try:
            started = time.monotonic()
            assert "the worker's own line" in run.text()
            assert time.monotonic() - started < 100
        finally:
            with contextlib.suppress(ProcessLookupError):  # the closed pipe may have ended it
                os.kill(run.messages[0][0], signal.SIGKILL)


def test_a_sink_that_fails_does_not_stop_workers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with driven(engine, "print_much") as run:

        def fail(rank: int, data: bytes) -> None:
            raise ValueError("a sink that fails")

        monkeypatch.setattr(run, "write", fail)
        assert run.until_ended() == [0]
        run.group.close()
    assert len(re.findall("ValueError: a sink that fails", capfd.readouterr().err)) == 1


def test_an_interrupt_cuts_no_message(engine: Engine) -> None:
    for _ in range(5):
        with driven(engine, "send_much") as run:
            run.until(lambda run=run: len(run.messages[0]) > 2)  # type: ignore[misc]
            run.group.interrupt()
            assert run.until_ended() == [0], run.text()
            assert run.messages[0][-1] == "interrupted"
            assert all(len(message) == 1_000_000 for message in run.messages[0][:-1])


def test_an_interrupt_in_a_destructor_is_not_lost(engine: Engine) -> None:
    with driven(engine, "wait_in_destructor") as run:
        run.until_told()
        run.group.interrupt()
        assert run.until_ended() == [0]
        assert run.messages[0] == ["ready", "interrupted"]
        assert run.text() == ""


def test_posts_arrive_without_another_call(engine: Engine) -> None:
    with driven(engine, "post_and_wait", payload=b"300") as run:
        run.until(lambda: "last" in run.messages[0])
        assert [m for m in run.messages[0] if isinstance(m, int)] == list(range(300))
        run.group.send(0, None)
        assert run.until_ended() == [0]


def test_a_large_environment(engine: Engine) -> None:
    large = {f"LARGE_{index}": "x" * 100_000 for index in range(8)}
    with driven(engine, "facts", size=4, payload=b"LARGE_7", environment=large) as run:
        assert run.until_ended() == [0] * 4
        assert all(m[0]["environment"] == {"LARGE_7": "x" * 100_000} for m in run.messages)


@pytest.mark.parametrize(("count", "size"), [(1, 300_000), (100, 60_000)])
def test_an_environment_that_no_new_process_could_have(
    fresh: LocalEngine, count: int, size: int
) -> None:
    large = {f"LARGE_{index}": "x" * size for index in range(count)}
    with driven(fresh, "facts", payload=b"LARGE_0", environment=large) as run:
        assert run.until_ended() == [0]
        assert run.messages[0][0]["environment"] == {"LARGE_0": "x" * size}


def test_many_workers(engine: Engine) -> None:
    with driven(engine, "facts", size=100) as run:
        assert run.until_ended() == [0] * 100


def test_a_fork_that_fails(
    fresh: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "second_fork_fails.py").write_text(
        "import errno, os\n"
        "fork, calls = os.fork, []\n"
        "def limited():\n"
        "    calls.append(1)\n"
        "    if len(calls) == 2:\n"
        "        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "    return fork()\n"
        "os.fork = limited\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with driven(fresh, "facts", size=3, preload=("second_fork_fails",)) as run:
        assert run.until_ended() == [0, None, 0]
        assert run.exits[1].detail == f"it could not be forked: {os.strerror(11)}"


def test_an_interpreter_that_is_not_there(
    fresh: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match="/nowhere/python"), driven(fresh, "facts"):
        pass


def test_an_interpreter_that_ends_at_once(
    fresh: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        try:
            with driven(fresh, "facts", size=2) as run:
                assert run.until_ended() == [None, None]
                detail = run.exits[0].detail
        except EngineError as error:  # it had ended before it was spoken to
            detail = str(error)
        assert "exit code 1" in detail
    with driven(fresh, "facts") as run:
        assert run.until_ended() == [0]


@pytest.mark.parametrize("how", ["plain", "gil", "deaf"])
def test_the_server_is_killed(fresh: LocalEngine, how: str) -> None:
    with driven(fresh, "family", size=2, payload=how.encode()) as run:
        run.until_told()
        server = run.messages[0][0]["server"]
        os.kill(server, signal.SIGKILL)
        assert run.until_ended() == [None, None]
        assert run.exits[0].detail == "the fork server that owns it is gone (killed by signal 9)"
        pids = [pid for messages in run.messages for pid in messages[0]["pids"]]
        wait_until(lambda: not any(map(lives, pids)))
    with driven(fresh, "facts") as run:
        assert run.until_ended() == [0]
        assert run.messages[0][0]["server"] != server


def test_a_server_that_died_unnoticed_is_replaced(fresh: LocalEngine) -> None:
    servers = set()
    for _ in range(5):
        with driven(fresh, "facts") as run:
            assert run.until_ended() == [0]
            servers.add(run.messages[0][0]["server"])
        server = run.messages[0][0]["server"]
        os.kill(server, signal.SIGKILL)
        wait_until(lambda server=server: not lives(server))  # type: ignore[misc]
    assert len(servers) == 5


def test_kill_reaches_every_kind_of_process(engine: Engine) -> None:
    for how in (b"plain", b"gil", b"deaf"):
        with driven(engine, "family", size=2, payload=how) as run:
            run.until_told()
            run.group.kill()
            assert run.until_ended() == [-9, -9]
            pids = [pid for messages in run.messages for pid in messages[0]["pids"]]
            wait_until(lambda pids=pids: not any(map(lives, pids)))  # type: ignore[misc]


def test_closing_the_engine_ends_its_server(fresh: LocalEngine) -> None:
    with driven(fresh, "family", payload=b"plain") as run:
        run.until_told()
        (told,) = run.messages[0]
        fresh.close()
        assert not lives(told["server"])
        wait_until(lambda: not any(map(lives, told["pids"])))
    fresh.close()
    with driven(fresh, "facts") as run:  # and it starts again when it is needed
        assert run.until_ended() == [0]


def test_closing_does_not_wait_for_a_slow_import(
    fresh: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_import.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with driven(fresh, "facts", preload=("slow_import",)):
        (server,) = fresh._pool.servers
    fresh.close()
    # Had it not listened, it would have been killed in the end.
    assert server.ending() in ("exit code 0", f"killed by signal {int(CLOSE_SIGNAL)}")


@pytest.mark.parametrize(("how", "code"), [("interrupt", 130), ("kill", -9)])
def test_stopping_does_not_wait_for_a_slow_import(
    fresh: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, code: int
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow_import.py").write_text(f"open({str(gate)!r}).close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    with driven(fresh, "facts", size=2, preload=("slow_import",)) as run:
        getattr(run.group, how)()
        assert run.until_ended() == [code, code]
        with open(gate, "w"):  # the import continues, and the server finds what was asked of it
            pass
    with driven(fresh, "facts", size=2, preload=("slow_import",)) as run:
        assert run.until_ended() == [0, 0]
        server, keeper = (run.messages[0][0][name] for name in ("server", "keeper"))
    wait_until(lambda: sorted(members(keeper)) == sorted([keeper, server]))


def test_groups_from_several_threads(engine: Engine) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                with driven(engine, "facts", size=2) as run:
                    assert run.until_ended() == [0, 0]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
