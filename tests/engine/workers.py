"""Functions that the tests of the local engine run in workers, and processes that these start."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from lockstep.engine.base import Channel
from lockstep.engine.wire import make_frame

FOREVER_S = 3600
SLEEP = [sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"]


def family(channel: Channel) -> int:
    """Start processes of every kind, tell their ids, and be stuck as the payload says."""
    how = channel.receive().decode()
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_S,))
    forked.start()
    plain = subprocess.Popen(SLEEP)
    apart = subprocess.Popen(SLEEP, start_new_session=True)
    pids = [os.getpid(), forked.pid, plain.pid, apart.pid]
    channel.send({"server": os.getppid(), "keeper": os.getsid(0), "pids": pids})
    if how == "gil":
        time.sleep(0.1)  # the message is on its way
        ctypes.PyDLL(None).sleep(FOREVER_S)
    time.sleep(FOREVER_S)
    return 0


def facts(channel: Channel) -> int:
    """Tell about this process, and exit."""
    names = channel.receive().decode().split()
    channel.send(
        {
            "pid": os.getpid(),
            "group": os.getpgid(0),
            "server": os.getppid(),
            "keeper": os.getsid(0),
            "cwd": os.getcwd(),
            "path": sys.path,
            "argv": sys.argv,
            "daemon": multiprocessing.current_process().daemon,
            "environment": {name: os.environ.get(name) for name in names},
        }
    )
    return 0


def import_and_tell(channel: Channel) -> int:
    """Import the module that the payload names and tell its VALUE."""
    channel.send(__import__(channel.receive().decode()).VALUE)
    return 0


def randoms(channel: Channel) -> int:
    """Tell what the random generators give."""
    channel.receive()
    assert "numpy" in sys.modules, "preloaded"
    import numpy as np

    channel.send((random.random(), float(np.random.random())))
    return 0


def _double(number: int) -> int:
    return 2 * number


def blas_threads(channel: Channel) -> int:
    """Tell how many threads NumPy's linear algebra may use, and how many run before it does."""
    channel.receive()
    assert "numpy" in sys.modules, "preloaded"
    idle = len(os.listdir("/proc/self/task")) - threading.active_count()
    pools = importlib.import_module("threadpoolctl").threadpool_info()
    channel.send(({pool["num_threads"] for pool in pools if pool["user_api"] == "blas"}, idle))
    return 0


def use_multiprocessing(channel: Channel) -> int:
    """Run a pool of each kind."""
    channel.receive()
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            channel.send((method, pool.map(_double, [1, 2, 3])))
            pool.close()
            pool.join()
    return 0


def use_data_loader(channel: Channel) -> int:
    """Load data in worker processes of torch's."""
    channel.receive()
    import torch
    from torch.utils.data import DataLoader

    data: Any = list(range(8))
    batches = [batch.tolist() for batch in DataLoader(data, batch_size=4, num_workers=2)]
    channel.send((batches, torch.get_num_threads()))
    return 0


def leave_behind(channel: Channel) -> int:
    """Exit cleanly, leaving a process that ignores SIGTERM and one that does not."""
    channel.receive()
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); "
    first = subprocess.Popen(
        [sys.executable, "-c", deaf + f"time.sleep({FOREVER_S})"], stdout=subprocess.PIPE
    )
    assert first.stdout is not None
    first.stdout.readline()
    second = subprocess.Popen(SLEEP)
    channel.send([first.pid, second.pid])
    for process in (first, second):
        process.returncode = 0  # no complaint that it is not waited for
    return 0


def leave_apart(channel: Channel) -> int:
    """Leave processes that are out of this worker's group, and end as the payload says."""
    how = channel.receive().decode()
    apart = subprocess.Popen(SLEEP, start_new_session=True)
    apart.returncode = 0  # no complaint that it is not waited for
    reading, writing = os.pipe()
    if os.fork() == 0:  # as a daemon is started: its parent ends at once
        os.setsid()
        daemon = os.fork()
        if daemon == 0:
            time.sleep(FOREVER_S)
        os.write(writing, str(daemon).encode())
        os._exit(0)
    channel.send([apart.pid, int(os.read(reading, 100))])
    if how == "wait":
        time.sleep(FOREVER_S)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "os._exit":
        os._exit(3)
    if how == "raise":
        raise RuntimeError("it fails")
    return 0


def leave_writer(channel: Channel) -> int:
    """Exit cleanly, leaving a process in a session of its own that writes without end."""
    channel.receive()
    code = "import os\nwhile True: os.write(1, b'y' * 4096)"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    channel.send(process.pid)
    process.returncode = 0
    print("the worker's own line")
    return 0


def write_without_end(channel: Channel) -> int:
    """Print until killed."""
    channel.receive()
    channel.send("printing")
    while True:
        print("x" * 1000)


def close_stdout(channel: Channel) -> int:
    """Print, close both streams and their files, and continue."""
    channel.receive()
    print("before")
    sys.stdout.close()
    os.close(1)
    print("on stderr", file=sys.stderr)
    os.close(2)
    channel.send("closed")
    channel.receive()
    return 5


def print_much(channel: Channel) -> int:
    """Print more than a pipe holds."""
    channel.receive()
    for _ in range(1000):
        print("x" * 1000)
    return 0


def print_odd(channel: Channel) -> int:
    """Print through the other names of the streams, and what cannot be encoded."""
    channel.receive()
    assert sys.__stdout__ is not None
    print("other name", file=sys.__stdout__)
    print("odd \udc80", file=sys.stderr)
    return 0


def at_exit(channel: Channel) -> int:
    """Leave handlers, a thread and an unfinished line for the end."""
    channel.receive()
    atexit.register(print, "handler 1")
    atexit.register(print, "handler 2")
    threading.Timer(0.05, print, ("thread",)).start()
    print("function")
    return 0


def send_much(channel: Channel) -> int:
    """Send big messages until interrupted, then a small one."""
    channel.receive()
    try:
        while True:
            channel.send(b"x" * 1_000_000)
    except KeyboardInterrupt:
        channel.send("interrupted")
    return 0


def wait_in_destructor(channel: Channel) -> int:
    """Wait where Python drops exceptions, say so, and wait on elsewhere."""
    channel.receive()

    class Slow:
        def __del__(self) -> None:
            channel.send("ready")
            time.sleep(FOREVER_S)

    try:
        Slow()
        time.sleep(FOREVER_S)
    except KeyboardInterrupt:
        channel.send("interrupted")
    return 0


def post_and_wait(channel: Channel) -> int:
    """Post from threads with pauses in which everything must arrive without another call."""
    count = int(channel.receive())
    for number in range(count):
        thread = threading.Thread(target=channel.post, args=(number,))
        thread.start()
        channel.send("mark")
        thread.join()
    channel.post("last")
    channel.receive()
    return 0


def write_garbage(channel: Channel) -> int:
    """On rank 0, write to the channel's socket past the channel; on others, wait for a message."""
    how = channel.receive()
    channel.send(os.getpid())
    if channel.rank > 0:
        channel.receive()
        return 0
    sock = channel._sock  # type: ignore[attr-defined]
    if how == b"noise":
        sock.sendall(b"a line that belongs into a log\n" * 5)
    else:
        body = b"cno_such_module_anywhere\nName\n."
        sock.sendall(make_frame(None)[:2] + len(body).to_bytes(6, "big") + body)
    time.sleep(FOREVER_S)
    return 0
