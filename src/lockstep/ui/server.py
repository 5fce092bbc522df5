"""The port and the address of the dashboard."""

from __future__ import annotations

import errno
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lockstep.console.dashboard import announce
from lockstep.errors import LockstepError
from lockstep.ui.library import Library
from lockstep.ui.places import Root

__all__ = ["serve"]

DEFAULT_PORT = 8300
_TRIES = 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    roots: list[Root],
    *,
    host: str,
    port: int | None,
    allowed: Iterable[str] = (),
    tell: Callable[[str], None],
) -> None:
    """Serve the dashboard until Ctrl-C. ``tell`` is called with its address.

    Args:
        roots: what it shows.
        host: where it listens.
        port: None: the first free one from ``DEFAULT_PORT`` on.
        allowed: other names under which browsers may ask for it.
        tell: gets the address with its token.
    """
    try:
        import uvicorn

        from lockstep.ui.app import Closing, make_app
    except ImportError as error:
        raise LockstepError(
            f"the dashboard needs {error.name or 'a package'}: pip install 'lockstep-train[ui]'."
        ) from error
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    library, closing = Library(roots), Closing()
    hosts = {"127.0.0.1", "localhost", "::1", host.lower(), *(name.lower() for name in allowed)}
    app = make_app(library, token, hosts, closing, f"lockstep_ui_{number}")
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="off",
        server_header=False,
    )  # fmt: skip

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn's own raises the signal again before anything here could clean up.
            before = {one: signal.signal(one, self.handle_exit) for one in _SIGNALS}
            try:
                yield
            finally:
                for one, handler in before.items():
                    signal.signal(one, handler)

        async def shutdown(self, sockets: Any = None) -> None:
            closing.close()
            await super().shutdown(sockets)

    # The thread that reads journals may not delay each step of a request by 5 ms, the default.
    sys.setswitchinterval(0.0005)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    address = f"http://{shown}:{number}/?token={token}"
    with listening, announce(address, [root.real for root in roots]):
        library.start()
        try:
            tell(address)
            Server(config).run(sockets=[listening])
        finally:
            library.close()


def _listen(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    problem: OSError | None = None
    for number in [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + _TRIES), 0]:
        try:
            return socket.create_server((host, number), family=family)
        except OSError as error:
            problem = error
    assert problem is not None
    why = (problem.strerror or str(problem)).partition(" (while")[0]
    option = "--port" if problem.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
    where = host if port is None else f"{host}:{port}"
    raise LockstepError(f"cannot listen on {where}: {why}; give another {option}.")
