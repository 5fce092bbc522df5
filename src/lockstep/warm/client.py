"""The client's side of a warm start: asks the server for a process, and stands for it.

A forked process cannot join the terminal's session. So the client stays in its place there: it
passes on every signal, stops when the script stops, and ends as the script ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import sys
import time

from lockstep.warm.messages import MAX_FILES, receive, send
from lockstep.warm.place import Place, Unavailable

TYPE_CHECKING = False  # see lockstep/__init__.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["FORWARDED", "ask", "await_process", "connect", "follow", "peer", "start_script"]

ANSWER_S = 30.0
"""How long the server may take to answer, as it does at once unless the machine is very busy."""
_LOOK_S = 0.25
_PEER = struct.Struct("3i")
_FROM_KERNEL = 0x80  # SI_KERNEL: typed on the terminal, not sent by a process

_NOT_FORWARDED = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGIO,  # says that the server has answered
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGSYS,
}
FORWARDED = signal.valid_signals() - _NOT_FORWARDED
"""The signals that a client passes on to the script."""


def connect(path: str) -> socket.socket:
    """A connection to a server of this user.

    Raises:
        Unavailable: nobody listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = None
    try:
        # A path may be too long for a socket's address: then through the directory's descriptor.
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        sock.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
        if peer(sock)[1] != os.getuid():
            raise Unavailable(f"another user listens on {path}")
    except (FileNotFoundError, NotADirectoryError) as error:
        sock.close()
        raise Unavailable("no warm server runs yet") from error
    except OSError as error:
        sock.close()
        raise Unavailable(f"the warm server does not answer ({error.strerror})") from error
    except BaseException:
        sock.close()
        raise
    finally:
        if directory is not None:
            os.close(directory)
    return sock


def peer(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group at the other end, by the kernel's word."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, user, group = _PEER.unpack(found)
    return pid, user, group


def ask(place: Place, kind: str) -> socket.socket:
    """Ask the server for a process; ``await_process`` waits for it. It begins with ``go``.

    Raises:
        Unavailable: with the reason.
    """
    sock = connect(place.socket)
    try:
        send(
            sock,
            kind,
            identity=place.identity,
            variables=place.variables,
            reads=list(place.reads),
        )
    except OSError as error:
        sock.close()
        raise Unavailable(f"the warm server does not answer ({error})") from error
    return sock


def await_process(sock: socket.socket) -> None:
    """Wait until the server has forked a process for this client, which reads from the connection.

    Raises:
        Unavailable: with the reason.
    """
    try:
        answer = _answer(sock)
    except OSError as error:
        raise Unavailable(f"the warm server does not answer ({error})") from error
    if answer[0] != "ready":
        raise Unavailable(answer[1].get("reason", "the warm server refused"))


def _answer(sock: socket.socket) -> tuple[str, dict[str, Any], list[int]]:
    server = peer(sock)[0]
    deadline = time.monotonic() + ANSWER_S
    sock.settimeout(_LOOK_S)
    while True:
        try:
            answer = receive(sock)
            break
        except TimeoutError:
            if _is_stopped(server):
                raise Unavailable(f"the warm server, process {server}, is stopped") from None
            if time.monotonic() > deadline:
                text = f"the warm server, process {server}, did not answer in {ANSWER_S:.0f} s"
                raise Unavailable(text) from None
    sock.settimeout(None)
    if answer is None:
        raise Unavailable("the warm server has ended")
    return answer


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def start_script(place: Place, files: list[int], **values: Any) -> tuple[socket.socket, int]:
    """Have the script started; returns the connection to its keeper, and the script's process.

    Raises:
        Unavailable: it was not started, and never will be.
    """
    if len(files) > MAX_FILES:
        raise Unavailable(f"this process has inherited {len(files)} open files")
    sock = ask(place, "run")
    try:
        await_process(sock)
    except BaseException:
        sock.close()
        raise
    try:
        send(sock, "go", files, **values)
        answer = receive(sock)
    except OSError as error:
        sock.close()
        raise Unavailable(f"the warm server has ended ({error})") from error
    if answer is None or answer[0] != "started":
        sock.close()
        raise Unavailable(
            "the process for the script could not be started"
            if answer is None
            else answer[1]["reason"]
        )
    os.close(answer[2][0])
    return sock, answer[1]["pid"]


def follow(sock: socket.socket, script: int, mask: set[int]) -> NoReturn:
    """Stand for the script until it ends, and end as it did. Signals must be blocked already.

    Args:
        sock: the connection to the script's keeper.
        script: its process, which leads a process group.
        mask: the signals that were blocked before.
    """
    sock.setblocking(False)
    waiting = FORWARDED - {signal.Signals(number) for number in mask} | {signal.SIGIO}
    signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sock, fcntl.F_SETFL, fcntl.fcntl(sock, fcntl.F_GETFL) | os.O_ASYNC)
    while True:
        try:
            message = receive(sock)
        except BlockingIOError:
            found = signal.sigwaitinfo(waiting)
            if found.si_signo != signal.SIGIO:
                _forward(script, found.si_signo, typed=found.si_code == _FROM_KERNEL)
            continue
        if message is None:
            print(
                f"lockstep run: the process that kept the script (process {script}) was killed, "
                "and the script with it.",
                file=sys.stderr,
            )
            os._exit(1)
        if message[0] == "stopped":
            _stop(message[1]["signal"])
            signal.sigtimedwait({signal.SIGCONT}, 0)  # what continued this process
            _forward(script, signal.SIGCONT, typed=True)
        elif message[0] == "ended":
            _end(message[1]["code"])


def _forward(script: int, number: int, *, typed: bool) -> None:
    """Pass a signal on; one that was typed on the terminal to the whole process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if typed:
            os.killpg(script, number)
        else:
            os.kill(script, number)


def _stop(number: int) -> None:
    """Stop this process, so that its shell sees it; returns when it is continued."""
    if number == signal.SIGSTOP:
        os.kill(os.getpid(), number)
        return
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def _end(code: int) -> NoReturn:
    if code < 0:
        import resource

        # The script has left its own dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os._exit(128 - code)
    os._exit(code)
