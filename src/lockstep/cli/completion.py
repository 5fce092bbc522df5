"""``lockstep completion``: what a shell needs to complete commands, options and names of runs."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep import settings
from lockstep.cli.command import Command
from lockstep.cli.output import print_json
from lockstep.errors import LockstepError

__all__ = ["COMMAND", "complete"]

_SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")


def complete(parser: ArgumentParser) -> None:
    """Answer a shell that asks what could follow, and exit; without such a question, return."""
    if settings.is_completing():
        _argcomplete().autocomplete(parser)


def _argcomplete() -> Any:
    try:
        import argcomplete
    except ImportError:
        raise LockstepError(
            "completion needs argcomplete: pip install 'lockstep-train[completion]'."
        ) from None
    return argcomplete


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        nargs="?",
        choices=_SHELLS,
        default=_shell(),
        help="which shell it is for; by default the one in $SHELL, or bash",
    )


def _shell() -> str:
    name = os.path.basename(settings.shell())
    return name if name in _SHELLS else "bash"


def _completion(options: Namespace) -> int:
    code = str(_argcomplete().shellcode(["lockstep"], shell=options.shell)).strip()
    if options.json:
        print_json({"shell": options.shell, "code": code})
    else:
        print(code)
    return 0


COMMAND = Command(
    "completion",
    "what a shell needs to complete commands, options and names of runs with the tab key",
    (
        'lockstep completion bash    in ~/.bashrc:  eval "$(lockstep completion bash)"',
        'lockstep completion zsh     in ~/.zshrc:   eval "$(lockstep completion zsh)"',
        "lockstep completion fish > ~/.config/fish/completions/lockstep.fish",
    ),
    _arguments,
    _completion,
)
