"""The pages over HTTP: who may ask, what is answered, what is pushed.

    GET  /                     the page; with ?token=… it sets the cookie that all others need
    GET  /static/NAME          its modules and styles
    GET  /api/events?view=…    server-sent events: a view's messages, as they come
    GET  /api/series …         one chart between two x
    GET  /api/logs …           lines of a log that contain a text
    GET  /api/checkpoint …     the names and sizes of a checkpoint's files
    GET  /api/diagnosis …      a run's diagnosis as text
    POST /api/stacks …         the stacks of all ranks, now

No address contains a path: runs have ids, and only what was found below the roots has one.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep.errors import LockstepError
from lockstep.journal.records import damage_named
from lockstep.observe.stacks import stacks_now
from lockstep.train.driver.failure import name_ranks
from lockstep.ui.library import Library
from lockstep.ui.logs import LogTail, log_ranks, search_log
from lockstep.ui.views import (
    CompareView,
    RunsView,
    RunView,
    SearchView,
    View,
    checkpoint_files,
    diagnosis_text,
    zoomed,
)

__all__ = ["Closing", "make_app"]

KEEP_ALIVE_S = 15.0
SPACING_S = 0.2
"""Between two pushes to a page; a run may report thousands of times a second."""
_LOG_S = 0.3

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STATIC = Path(__file__).parent / "static"


class Closing:
    """Says to every stream that the server ends."""

    def __init__(self) -> None:
        self.now = False
        self.calls: set[Callable[[], None]] = set()

    def close(self) -> None:
        """End the streams. In the server's own thread."""
        self.now = True
        for call in list(self.calls):
            call()


def make_app(
    library: Library, token: str, hosts: set[str], closing: Closing, cookie: str = "lockstep_ui"
) -> ASGIApp:
    """The application. ``hosts``: the names under which browsers may ask for it."""
    # Read once: a request names one of these, and never a path.
    files = {
        path.relative_to(_STATIC).as_posix(): (path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(_STATIC.rglob("*"))
        if path.suffix in _TYPES
    }

    async def page(request: Request) -> Response:
        content, kind = files["index.html"]
        response = Response(content, media_type=kind)
        if request.query_params.get("token") is not None:
            response.set_cookie(cookie, token, httponly=True, samesite="strict", path="/")
        return response

    async def static(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        return Response(found[0], media_type=found[1]) if found else _not_found()

    async def events(request: Request) -> Response:
        view = _view(library, request)
        if view is None:
            return _not_found()
        stream = _stream(library, view, closing)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def series(request: Request) -> Response:
        query = request.query_params
        lines = await run_in_threadpool(
            zoomed,
            library,
            query.get("id", ""),
            query.get("name", ""),
            by_time=query.get("axis") == "time",
            low=_float(query.get("low")),
            high=_float(query.get("high")),
            ranks="ranks" in query,
        )
        return _not_found() if lines is None else JSONResponse({"lines": lines})

    async def logs(request: Request) -> Response:
        query = request.query_params
        with library.lock:
            model = library.light(query.get("id", ""))
        rank, text = query.get("rank", ""), query.get("text", "")
        if model is None or not rank.isdecimal() or len(rank) > 6 or not text:
            return _not_found()
        lines, more = await run_in_threadpool(search_log, model.place, int(rank), text)
        return JSONResponse({"lines": lines, "more": more})

    async def checkpoint(request: Request) -> Response:
        query = request.query_params
        number = query.get("checkpoint", "")
        if not number.isdecimal() or len(number) > 12:
            return _not_found()
        found = await run_in_threadpool(checkpoint_files, library, query.get("id", ""), int(number))
        return _not_found() if found is None else JSONResponse({"files": found})

    async def diagnosis(request: Request) -> Response:
        run_id = request.query_params.get("id", "")
        text = await run_in_threadpool(diagnosis_text, library, run_id)
        return _not_found() if text is None else PlainTextResponse(text)

    async def stacks(request: Request) -> Response:
        run_id = request.query_params.get("id", "")
        with library.lock:
            model = library.light(run_id)
        if model is None:
            return _not_found()

        def ask() -> dict[str, Any]:
            try:
                with damage_named("the run's journal"):
                    groups, problems, pids = stacks_now(model)
            except LockstepError as error:
                return {"error": str(error)}
            # The odd one first: where most ranks wait, the one that is elsewhere is the cause.
            shown = [
                {
                    "title": name_ranks(ranks).capitalize(),
                    "pids": [pids[rank] for rank in ranks],
                    "lines": list(lines),
                }
                for lines, ranks in sorted(groups.items(), key=lambda item: len(item[1]))
            ]
            named = {str(rank): text for rank, text in sorted(problems.items())}
            return {"groups": shown, "problems": named}

        return JSONResponse(await run_in_threadpool(ask))

    routes = [
        Route("/", page),
        Route("/static/{name:path}", static),
        Route("/api/events", events),
        Route("/api/series", series),
        Route("/api/logs", logs),
        Route("/api/checkpoint", checkpoint),
        Route("/api/diagnosis", diagnosis),
        Route("/api/stacks", stacks, methods=["POST"]),
    ]
    return _Guard(Starlette(routes=routes), token, hosts, cookie)


def _not_found() -> Response:
    return PlainTextResponse("There is nothing here.\n", 404)


def _float(text: str | None) -> float | None:
    if text is None:
        return None
    with suppress(ValueError):
        value = float(text)
        return value if math.isfinite(value) else None
    return None


def _view(library: Library, request: Request) -> View | None:
    query = request.query_params
    name, one = query.get("view"), query.get("id", "")
    if name == "runs":
        return RunsView(library, query.get("metric"))
    if name == "run":
        return RunView(library, one)
    if name == "logs":
        return _LogsView(library, one)
    if name == "experiment":
        return SearchView(library, one)
    if name == "compare":
        return CompareView(library, query.getlist("id"))
    return None


class _LogsView(View):
    """The ends of the ranks' logs."""

    def __init__(self, library: Library, run_id: str) -> None:
        super().__init__(library)
        self._id = run_id
        self._tails: dict[int, LogTail] = {}

    def news(self) -> Iterator[dict[str, Any]]:
        # Not under the lock: nothing here is the library's, and a log may be on slow storage.
        with self._library.lock:
            model = self._library.light(self._id)
        if model is None:
            return
        for rank in log_ranks(model.place):
            if rank not in self._tails:
                self._tails[rank] = LogTail(model.place, rank)
        for rank, tail in self._tails.items():
            before, lines = tail.unended, tail.more()
            if lines or tail.unended != before:
                yield {"type": "logs", "rank": rank, "lines": lines, "unended": tail.unended}

    def _news(self) -> Iterator[dict[str, Any]]:
        raise NotImplementedError


async def _stream(library: Library, view: View, closing: Closing) -> AsyncIterator[bytes]:
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(changed.set)

    closing.calls.add(changed.set)
    try:
        with library.listening(wake):
            yield b"retry: 1000\n\n"
            while not closing.now:
                changed.clear()
                async for message in iterate_in_threadpool(view.news()):
                    text = json.dumps(message, separators=(",", ":"), allow_nan=False)
                    yield f"data: {text}\n\n".encode()
                await asyncio.sleep(SPACING_S)
                # A log grows without the journal: it is looked at in any case.
                limit = _LOG_S if isinstance(view, _LogsView) else KEEP_ALIVE_S
                with anyio.move_on_after(limit) as waited:
                    await changed.wait()
                if waited.cancelled_caught and limit == KEEP_ALIVE_S:
                    yield b": still here\n\n"
    finally:
        closing.calls.discard(changed.set)


class _Guard:
    """Lets only the user in, and only pages of this server.

    The name in ``Host`` must be one of the allowed: a page elsewhere whose name leads to this
    machine (DNS rebinding) is refused. ``Origin`` must be this server, where there is one.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: set[str], cookie: str) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        refused = self._refusal(scope)
        with_headers = _adding_headers(send)
        if refused is not None:
            status, text = refused
            await PlainTextResponse(text + "\n", status)(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        host = headers.get("host", "")
        if _host_name(host) not in self._hosts:
            return 403, (
                f"This dashboard does not answer for {host[:100]!r}. Start it with "
                "lockstep ui --allow-host NAME if that is its name."
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "This dashboard answers only its own pages."
        if headers.get("sec-fetch-site") == "cross-site" and scope["path"] != "/":
            return 403, "This dashboard answers only its own pages."
        if self._knows(headers, scope):
            return None
        return 403, (
            "This address needs its token: open the address that lockstep ui has printed, with "
            "?token=… at its end."
        )

    def _knows(self, headers: dict[str, str], scope: Scope) -> bool:
        with suppress(CookieError):
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
            if cookie is not None and hmac.compare_digest(cookie.value.encode(), self._token):
                return True
        if scope["path"] != "/":
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return hmac.compare_digest(given.encode(), self._token)


def _adding_headers(send: Send) -> Callable[[Message], Awaitable[None]]:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return sending


def _host_name(host: str) -> str:
    """``[::1]:8300`` → ``::1``."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
