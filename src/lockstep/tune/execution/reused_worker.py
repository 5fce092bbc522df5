"""What a worker does with ``TuneConfig(reuse_actors=True)``: one trial after the other."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from lockstep.engine.base import Channel
from lockstep.engine.titles import set_title
from lockstep.train.worker.main import main as run_trial
from lockstep.tune.trainable import stop_kept

__all__ = ["END_OF_OUTPUT", "ENTRY", "Idle", "NextTrial", "main"]

ENTRY = f"{__name__}:main"
END_OF_OUTPUT = b"\0lockstep: end of a trial's output\0"
"""Written after what a trial has printed: what follows in the pipe is the next trial's."""


class Idle(NamedTuple):
    """From a worker: the trial has ended, and the process can run another."""


class NextTrial(NamedTuple):
    """To an idle worker: another trial follows. Any other message ends the worker."""

    title: str


def main(channel: Channel) -> int:
    """Run trials until one fails, or no other follows."""
    try:
        while True:
            exitcode = run_trial(channel)
            if exitcode:
                return exitcode
            sys.stdout.flush()
            sys.stderr.flush()
            _write(END_OF_OUTPUT)
            channel.send(Idle())
            message = channel.receive()
            if not isinstance(message, NextTrial):
                return 0
            set_title(message.title, message.title.partition(": rank")[0], f":{channel.rank}")
    finally:
        stop_kept()


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
