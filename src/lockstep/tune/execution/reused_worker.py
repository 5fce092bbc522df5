"""What a worker does with ``TuneConfig(reuse_actors=True)``: one trial after the other."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from lockstep.engine.base import Channel
from lockstep.engine.titles import set_title
from lockstep.train.worker.main import main as run_trial
from lockstep.tune import trainable

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
    trainable.can_keep = True
    printed = os.dup(1)  # a trainable may redirect its own
    try:
        while True:
            exitcode = run_trial(channel)
            if exitcode:
                return exitcode
            sys.stdout.flush()
            sys.stderr.flush()
            _write(printed, END_OF_OUTPUT)
            channel.send(Idle())
            message = channel.receive()
            if not isinstance(message, NextTrial):
                return 0
            set_title(message.title, message.title.partition(": rank")[0], f":{channel.rank}")
    finally:
        trainable.stop_kept()
        os.close(printed)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
