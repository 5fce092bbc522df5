"""``lockstep warm``: what the warm servers hold and cost, and how to end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep import settings
from lockstep.cli.command import Command
from lockstep.cli.output import print_facts, print_json
from lockstep.warm.client import connect, peer
from lockstep.warm.messages import receive, send
from lockstep.warm.place import Unavailable, forget_learnt, places

__all__ = ["COMMAND"]

_ANSWER_S = 10.0
"""How long a server may take to answer. It may be importing."""


def _arguments(parser: ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--status", action="store_true", help="say what they hold (the default)")
    choice.add_argument(
        "--stop", action="store_true", help="end them, and forget what they have learnt"
    )


def _warm(options: Namespace) -> int:
    if options.stop:
        return _stop(options)
    found = [status for path in places() if (status := _ask(path, "status"))]
    if options.json:
        print_json(found)
    elif not found:
        off = " (LOCKSTEP_WARM=0)" if settings.warm_is_off() else ""
        print(f"No warm server runs{off}. 'lockstep run SCRIPT' starts one.")
    for number, status in enumerate(found if not options.json else ()):
        if number:
            print()
        print_facts(_facts(status))
    return 0


def _facts(status: dict[str, Any]) -> list[tuple[str, str]]:
    if "problem" in status:
        return [("server", f"process {status['pid']}: {status['problem']}")]
    left = max(0.0, status["ends_after"] - status["idle"])
    facts = [
        ("server", f"process {status['pid']}, since {_minutes(status['seconds'])}"),
        ("python", status["python"]),
        ("memory", f"{status['memory'] / 1e6:.0f} MB"),
        ("packages", ", ".join(status["packages"])),
        ("started", f"{status['served']} processes, {status['running']} of them run"),
        ("ends", "not while they run" if status["running"] else f"unused, in {_minutes(left)}"),
    ]
    facts += [("left out", f"{name}: {why}") for name, why in sorted(status["unsafe"].items())]
    return facts


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _stop(options: Namespace) -> int:
    stopped = []
    for path in places():
        answer = _ask(path, "stop")
        if answer is None:
            continue
        pid = answer["pid"]
        _await_end(pid, kill="problem" in answer)
        stopped.append(pid)
    forget_learnt()
    if options.json:
        print_json({"stopped": stopped})
    elif stopped:
        print("\n".join(f"Stopped the warm server, process {pid}." for pid in stopped))
    else:
        print("No warm server runs.")
    return 0


def _ask(path: str, kind: str) -> dict[str, Any] | None:
    """The server's answer; with ``problem`` if it does not answer; None if there is none."""
    try:
        sock = connect(path)
    except Unavailable:
        return None
    with sock:
        pid = peer(sock)[0]
        sock.settimeout(_ANSWER_S)
        try:
            send(sock, kind)
            answer = receive(sock)
        except OSError:
            return {"pid": pid, "problem": "it does not answer; lockstep warm --stop kills it"}
    return None if answer is None else answer[1]


def _await_end(pid: int, *, kill: bool) -> None:
    """Wait for a server's end, so that the next start finds none. Scripts that run continue."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if kill:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            import select

            waiting = select.poll()
            waiting.register(handle, select.POLLIN)
            deadline = time.monotonic() + _ANSWER_S
            while not waiting.poll(100) and time.monotonic() < deadline:
                pass
        finally:
            os.close(handle)


COMMAND = Command(
    "warm",
    "say what the servers behind 'lockstep run' hold and cost, or end them",
    (
        "lockstep warm            packages, memory, age of each server",
        "lockstep warm --stop     end them; scripts that run continue",
    ),
    _arguments,
    _warm,
)
