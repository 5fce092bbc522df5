"""The runtime around the training function inside a worker."""

from __future__ import annotations

import inspect
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep import ray_names
from lockstep.checkpoint.returned import pack_returned
from lockstep.config import Guard
from lockstep.engine.attach import start_ticks
from lockstep.engine.base import Channel, Node, WorkerInfo
from lockstep.engine.resources import get_node_ip_address
from lockstep.error_record import pack_error
from lockstep.errors import StopTraining, StorageError, WorkerDiedError
from lockstep.run_layout import JOURNAL_FILE
from lockstep.storage import Storage
from lockstep.train.backend import Backend, Wiring
from lockstep.train.context import TrainContext
from lockstep.train.function.arguments import config_like, takes_config
from lockstep.train.function.sources import register_sources
from lockstep.train.function.unpickling import load, load_function
from lockstep.train.protocol import (
    Exit,
    Failed,
    Finished,
    Hello,
    Interrupted,
    Launch,
    Lingering,
    WorkerSetup,
)
from lockstep.train.worker import session as sessions
from lockstep.train.worker.by_value import send_on_by_value
from lockstep.train.worker.debugger import Debugging
from lockstep.train.worker.lingering import threads_left
from lockstep.train.worker.shards import Shards
from lockstep.train.worker.torch_device import get_device

__all__ = ["adopt_main", "check_shared", "main"]

SHARED_S = 10.0
"""How long a new directory may take to be seen on another node."""


def main(channel: Channel) -> int:
    """What a worker does: announce itself, set up the framework, run the training function."""
    called = False
    ray_names.install_in_worker()
    try:
        # Pickled by the driver once for all ranks, and sent as bytes.
        setup: WorkerSetup = pickle.loads(channel.receive())
        backend: Backend = pickle.loads(setup.backend)
        info = _worker_info(channel)
        address = "127.0.0.1" if setup.single_machine else info.node_ip
        channel.send(Hello(info, backend.announce(channel.rank, address)))
        launch = channel.receive()
        if isinstance(launch, Exit):
            return 0
        try:
            session, call = _prepare(channel, setup, backend, launch, info)
            called = True
            debugging: AbstractContextManager[Any] = nullcontext()
            if setup.own_process:
                debugging = Debugging(
                    channel.rank, session.borrow_terminal, session.return_terminal
                )
            returned = _train(channel, session, call, debugging)
        except BaseException:
            if launch.ranks[channel.rank].world_size == 1:
                # No other rank to wait for; and in this process, the next attempt needs it closed.
                backend.teardown()
            raise
    except KeyboardInterrupt:
        channel.send(Interrupted())
        return 130
    except BaseException as error:
        channel.send(Failed(_packed(error), before_start=not called))
        return 1
    finally:
        sessions.activate(None)
    kept = pack_returned(returned) if channel.rank == 0 else None
    channel.send(Finished(kept, *session.take_times()))
    if not isinstance(channel.receive(), Exit):
        return 1
    backend.teardown()
    if setup.own_process and (threads := threads_left()):
        channel.send(Lingering(threads))
    return 0


def _prepare(
    channel: Channel, setup: WorkerSetup, backend: Backend, launch: Launch, info: WorkerInfo
) -> tuple[sessions.Session, Callable[[], Any]]:
    """Set up everything around the training function; return it with its config bound."""
    if not setup.single_machine:
        check_shared(setup.storage, info)
    ranks = launch.ranks[channel.rank]
    context = replace(
        setup.context,
        **ranks._asdict(),
        attempt=launch.attempt,
        metadata=load(setup.metadata, "metadata"),
    )
    master = "127.0.0.1" if setup.single_machine else launch.master
    announcements = tuple(map(launch.announcements.get, range(ranks.world_size)))
    _enter_working_dir(setup.working_dir, context)
    with channel.interrupts_end_it():
        # A rank that lost the others here would wait for them, or print long errors.
        backend.setup(Wiring(context, announcements, master, setup.use_gpu))
    session = sessions.Session(
        channel,
        context,
        setup.storage,
        setup.score_attribute,
        launch.checkpoint,
        launch.reported,
        pickle.loads(setup.faults) if setup.faults else None,
        Shards(
            setup.datasets,
            context.world_rank,
            context.world_size,
            launch.positions,
            get_device,
            launch.streams.get(channel.rank, {}),
        )
        if setup.datasets
        else None,
        launch.memory,
        starts_pending=launch.is_pending,
        fallback=launch.fallback,
    )
    session.validates = setup.validates
    guard: Guard | None = load(setup.guard, "guard") if setup.guard else None
    if guard is not None:
        session.use_guard(guard, launch.broken)
    # Before the function is loaded: code that runs while loading may use the context.
    sessions.activate(session)
    register_sources(setup.sources)
    function, config = load_function(setup.function)
    overrides = load(setup.overrides, "param_space") if setup.overrides else {}
    config = config_like(config, {**config, **overrides})
    if guard is not None and guard.on_rollback is not None and launch.broken is not None:
        for _ in range(launch.broken.rollbacks):
            changed = guard.on_rollback(config)
            config = config if changed is None else config_like(config, changed)
    adopt_main(function)
    if not hasattr(sys.modules["__main__"], "__file__"):  # a process of its own
        send_on_by_value()
    return session, partial(function, config) if takes_config(function) else function


def check_shared(storage: Storage, worker: WorkerInfo, patience_s: float = SHARED_S) -> None:
    """Make sure that this node sees what the driver has written to the run's directory.

    Otherwise each node would write its part of a checkpoint to a disk of its own. The run's journal
    is the probe: it exists since before the workers were started.
    """
    journal = os.path.join(storage.root, JOURNAL_FILE)
    late = time.monotonic() + patience_s
    while storage.is_local and not os.path.exists(journal):
        if time.monotonic() > late:
            raise StorageError(
                f"rank {worker.rank}, on node {worker.node_ip} ({worker.hostname}), does not see "
                f"the run's directory {storage.root}: all nodes must share the storage. Set "
                "RunConfig(storage_path=…) to a directory that they share, such as NFS, or to "
                "an object store (s3://…)."
            )
        time.sleep(0.1)  # a network file system may show a new directory late


def _train(
    channel: Channel,
    session: sessions.Session,
    call: Callable[[], Any],
    debugging: AbstractContextManager[Any],
) -> Any:
    """Call the function; return what it returned, None where it was stopped."""
    returned = None
    try:
        with session.end_hooks(_packed), debugging:
            session.start_clock()  # what came before belongs to the start
            try:
                returned = call()
            except SystemExit as stop:  # sys.exit() is a way to return
                if stop.code in (None, 0):
                    session.keep_last_state()
                raise
            session.keep_last_state()
    except StopTraining:
        pass
    except SystemExit as stop:
        if stop.code not in (None, 0):
            session.finish()
            raise
    except BaseException:
        session.finish()  # wait for uploads: checkpoints reported before the error are kept
        raise
    if not session.finish():
        # The failed upload has been reported; the driver ends this process.
        channel.receive()
    return returned


def adopt_main(function: Callable[..., Any]) -> None:
    """Put what came from the driver's ``__main__`` into this one.

    The function's classes say they live in ``__main__``; without this, pickling an object of one
    (torch.save of a model object, a spawned data loader) would not find its class.
    """
    inner = inspect.unwrap(getattr(function, "func", function))
    if not hasattr(inner, "__globals__"):
        inner = type(inner).__call__  # a callable object
    if getattr(inner, "__module__", None) != "__main__" or not hasattr(inner, "__globals__"):
        return
    namespace = vars(sys.modules["__main__"])
    for name, value in inner.__globals__.items():
        if not name.startswith("__"):
            # setdefault: names of the worker's own __main__ stay.
            namespace.setdefault(name, value)


def _packed(error: BaseException) -> dict[str, Any]:
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        died = WorkerDiedError(f"the training function called sys.exit({error.code!r}).", code)
        error = died.with_traceback(error.__traceback__)
    return pack_error(error)


def _enter_working_dir(working_dir: str | None, context: TrainContext) -> None:
    if working_dir == "run":
        os.chdir(context.trial_dir)
    elif working_dir == "rank":
        path = os.path.join(context.trial_dir, f"rank_{context.world_rank}")
        os.makedirs(path, exist_ok=True)
        os.chdir(path)


def _worker_info(channel: Channel) -> WorkerInfo:
    node = channel.node or Node("", get_node_ip_address())
    started = start_ticks(os.getpid())
    return WorkerInfo(
        channel.rank, os.getpid(), socket.gethostname(), node.address, started, node.id
    )
