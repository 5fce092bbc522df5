"""Calls of ``async`` functions: many wait at once, on an event loop of their own."""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Waiting"]


class Waiting:
    """An event loop that is kept between calls: a user's object may have connections on it.

    The loop runs in a thread only during a call: the calling thread may have a loop of its own,
    as in a notebook. Safe to use from several threads, one after the other.

    Args:
        most: how many calls wait at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)

    def results(self, fn: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
        """The results of ``fn``, in order; those of an ``async`` generator as a generator.

        Raises:
            Exception: the first that a call raised; the other calls are cancelled.
        """
        made: list[Any] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                made.extend(self._loop.run_until_complete(self._all(fn, values)))
            except BaseException as error:
                errors.append(error)

        with self._lock:
            thread = threading.Thread(target=run, name="lockstep-data-async", daemon=True)
            thread.start()
            thread.join()
        if errors:
            raise errors[0]
        return made

    async def _all(self, fn: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
        free = asyncio.Semaphore(self._most)

        async def one(value: Any) -> Any:
            async with free:
                made = fn(value)
                if inspect.isasyncgen(made):
                    parts = [part async for part in made]
                    return (part for part in parts)
                return await made

        tasks = [asyncio.ensure_future(one(value)) for value in values]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
