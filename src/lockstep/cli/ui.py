"""``lockstep ui``: the dashboard, in a browser."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace

from lockstep import settings
from lockstep.cli.command import Command, WholeNumber, run_names
from lockstep.journal.lookup import find_place

__all__ = ["COMMAND"]


def _arguments(parser: ArgumentParser) -> None:
    places = parser.add_argument(
        "places",
        metavar="PATH",
        nargs="*",
        help="directories or URIs with runs or experiments, or names as the other commands accept "
        f"them; by default the results root ({settings.results_root()})",
    )
    vars(places)["completer"] = run_names
    parser.add_argument(
        "--host", default="127.0.0.1", help="where it listens; by default only on this machine"
    )
    parser.add_argument(
        "--port", type=WholeNumber(0, 65535), help="by default the first free one from 8300 on"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name under which browsers ask for it, behind a proxy; may be repeated",
    )


def _ui(options: Namespace) -> int:
    from lockstep.ui.places import open_roots
    from lockstep.ui.server import serve

    paths = [find_place(place, pieces=True).uri for place in options.places]

    def tell(address: str) -> None:
        if options.json:
            print(json.dumps({"address": address}), flush=True)
            return
        print(f"The dashboard is at {address}", flush=True)
        if options.host not in ("127.0.0.1", "localhost", "::1"):
            print(
                "Whoever reaches this port and has the address sees these runs, unencrypted; "
                "ssh -L is safer.",
                file=sys.stderr,
            )
        print("Ctrl-C stops the dashboard; runs continue.", flush=True)

    serve(
        open_roots(paths, settings.results_root()),
        host=options.host,
        port=options.port,
        allowed=options.allow_host,
        tell=tell,
    )
    return 0


COMMAND = Command(
    "ui",
    "the dashboard: runs, charts, workers and experiments in a browser; it only reads",
    (
        "lockstep ui                                everything below the results root",
        "lockstep ui /data/team s3://bucket/runs    other places",
        "lockstep ui --port 8300                    with ssh -L 8300:localhost:8300 HOST",
    ),
    _arguments,
    _ui,
)
