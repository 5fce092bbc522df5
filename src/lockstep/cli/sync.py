"""``lockstep sync RUN``: sends what trackers did not get before the run ended."""

from __future__ import annotations

from argparse import Namespace

from lockstep.cli.command import Command, add_run
from lockstep.cli.output import print_json
from lockstep.journal.lookup import find_place

__all__ = ["COMMAND"]


def _sync(options: Namespace) -> int:
    from lockstep.trackers.sync import send_undelivered

    place = find_place(options.run, pieces=True)
    sent = []
    for sentence in send_undelivered(place):
        sent.append(sentence)
        if not options.json:
            print(sentence, flush=True)
    if options.json:
        print_json({"path": place.uri, "sent": sent})
    elif not sent:
        print(f"Trackers have everything of {place.uri}: nothing to send.")
    return 0


COMMAND = Command(
    "sync",
    "send what trackers did not get before the run ended",
    ("lockstep sync mnist    send the undelivered rows of the newest run of mnist",),
    add_run,
    _sync,
)
