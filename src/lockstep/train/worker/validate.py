"""The process that validates one checkpoint: calls the user's function, sends its metrics."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Mapping

from lockstep import ray_names
from lockstep.engine.base import Channel
from lockstep.error_record import pack_error
from lockstep.metrics import normalise
from lockstep.train.function.sources import register_sources
from lockstep.train.function.unpickling import load_function
from lockstep.train.protocol import Failed, Interrupted, Validated, ValidationSetup
from lockstep.train.worker import session as sessions
from lockstep.train.worker.by_value import send_on_by_value
from lockstep.train.worker.main import adopt_main

__all__ = ["main"]


def main(channel: Channel) -> int:
    """Call the validation function with the checkpoint, and send the driver what it returns."""
    ray_names.install_in_worker()
    # Where training runs in this process, too: the function is no part of it.
    training = sessions.current()
    sessions.activate(None)
    try:
        setup: ValidationSetup = pickle.loads(channel.receive())
        register_sources(setup.sources)
        function, _ = load_function(setup.function)
        adopt_main(function)
        if not hasattr(sys.modules["__main__"], "__file__"):  # a process of its own
            send_on_by_value()
        metrics = function(setup.checkpoint, **setup.fn_kwargs)
        if not isinstance(metrics, Mapping):
            raise TypeError(
                f"The validation function returned {metrics!r}; return a dict of metrics."
            )
        channel.send(Validated(normalise(metrics)))
    except KeyboardInterrupt:
        channel.send(Interrupted())
        return 130
    except BaseException as error:
        traceback.print_exc()  # training continues: this is where the user finds it
        channel.send(Failed(pack_error(error)))
        return 1
    finally:
        sessions.activate(training)
    return 0
