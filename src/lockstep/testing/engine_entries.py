"""The functions that the engine conformance suite runs in workers. Nothing else calls them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time

from lockstep.engine.base import Channel

__all__ = [
    "answer_interrupt",
    "crash",
    "echo",
    "environment",
    "exit_with",
    "fail",
    "post_and_send",
    "print_lines",
    "send_from_threads",
    "sleep",
    "start_child",
    "terminate",
    "who",
]

FOREVER_S = 3600.0


def echo(channel: Channel) -> int:
    """Send back the payload, then every message, until one is None."""
    message = channel.receive()
    while message is not None:
        channel.send(message)
        message = channel.receive()
    return 0


def who(channel: Channel) -> int:
    """Send the rank and the process id."""
    channel.receive()
    channel.send((channel.rank, os.getpid()))
    return 0


def exit_with(channel: Channel) -> int:
    """End with the payload plus the rank as exit code."""
    return int(channel.receive()) + channel.rank


def fail(channel: Channel) -> int:
    """Raise, after a post that must arrive nevertheless."""
    channel.receive()
    channel.post("last words")
    raise RuntimeError("raised on purpose")


def crash(channel: Channel) -> int:
    """End at once by the signal in the payload; the message sent before must arrive."""
    number = int(channel.receive())
    channel.send("about to die")
    os.kill(os.getpid(), number)
    time.sleep(FOREVER_S)
    return 0


def environment(channel: Channel) -> int:
    """Send the values of the variables whose names the payload lists."""
    channel.send({name: os.environ.get(name) for name in channel.receive().decode().split()})
    return 0


def post_and_send(channel: Channel) -> int:
    """Post and send numbers in turn: every seventh is sent, the last ones are only posted."""
    count = int(channel.receive())
    for number in range(count):
        if number % 7 == 0 and number < count - 7:
            channel.send(number)
        else:
            channel.post(number)
    return 0


def send_from_threads(channel: Channel) -> int:
    """Send and post from several threads at once."""
    threads, count = pickle.loads(channel.receive())

    def work(thread: int) -> None:
        for number in range(count):
            (channel.send if number % 2 else channel.post)((thread, number))

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 0


def print_lines(channel: Channel) -> int:
    """Print numbered lines, on stdout and stderr in turn, and one without a line end."""
    for number in range(int(channel.receive())):
        print(f"rank {channel.rank} line {number}", file=sys.stderr if number % 2 else sys.stdout)
    print("the end", end="")
    return 0


def answer_interrupt(channel: Channel) -> int:
    """Send "ready", wait for an interrupt, report it, and exit with 7."""
    channel.receive()
    try:
        channel.send("ready")
        channel.receive()
    except KeyboardInterrupt:
        channel.send("interrupted")
        return 7
    return 0


def sleep(channel: Channel) -> int:
    """Send "ready", then sleep for an hour."""
    channel.receive()
    channel.send("ready")
    time.sleep(FOREVER_S)
    return 0


def terminate(channel: Channel) -> int:
    """Get a SIGTERM, report it, then send back every message until one is None."""
    channel.receive()
    os.kill(os.getpid(), signal.SIGTERM)
    channel.send("terminated")
    return echo(channel)


def start_child(channel: Channel) -> int:
    """Start a process that runs for an hour, send its id, and wait for a message."""
    channel.receive()
    code = f"import time; time.sleep({FOREVER_S})"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        channel.send(child.pid)
        channel.receive()
    return 0
