"""``lockstep mcp``: a server of the Model Context Protocol, through which assistants look at runs.

It reads requests from stdin and answers on stdout, a JSON-RPC 2.0 message a line. Its tools are
the commands that only read, with their arguments and what ``--json`` prints.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from contextlib import redirect_stdout
from typing import Any, NoReturn

from lockstep import __version__
from lockstep.cli import compare, env, logs, ls, plot, show, why
from lockstep.cli.command import Command, WholeNumber
from lockstep.console.text import clean

__all__ = ["COMMAND"]

_COMMANDS = (ls, show, why, logs, plot, compare, env)
_LEFT_OUT = frozenset(("help", "follow", "width", "log", "diff"))
"""Options that wait, or are for a terminal."""
_VERSIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
_PARSE, _REQUEST, _METHOD, _PARAMETERS = -32700, -32600, -32601, -32602
_MAX_POINTS = 200
_MAX_LINES = 200
_MAX_ANSWER = 200_000
_MAX_OUTPUT = 64 << 20
"""How much of a command is kept until it is thinned."""


class _Refused(Exception):
    """A request that is answered with an error of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class _Tool:
    """A command as a tool: the schema of its arguments, and a call of it."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._parser = _Parser(command.name, add_help=False)
        command.arguments(self._parser)
        self._actions = {
            action.dest: action for action in self._parser._actions if action.dest not in _LEFT_OUT
        }

    @property
    def described(self) -> dict[str, Any]:
        """What ``tools/list`` says of it."""
        required = [a.dest for a in self._actions.values() if a.required]
        return {
            "name": self._command.name,
            "description": self._command.help[0].upper() + self._command.help[1:] + ".",
            "inputSchema": {
                "type": "object",
                "properties": {name: _schema(action) for name, action in self._actions.items()},
                "required": required,
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": True},
        }

    def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the command prints, or the sentence that says why it could not."""
        words = self._words(arguments)
        output = _Bounded()
        try:
            with redirect_stdout(output):
                options = self._parser.parse_args(words, argparse.Namespace(json=True))
                self._command.call(options)
            text = output.getvalue()
            if self._command is plot.COMMAND:
                text = _thinned(text)
            if len(text) > _MAX_ANSWER:
                raise ValueError(f"the answer has {len(text):,} characters: ask for less.")
        except Exception as error:  # whatever a damaged run makes of a command, the server stays
            return _content(clean(str(error) or type(error).__name__), failed=True)
        return _content(text or "Nothing was found.")

    def _words(self, arguments: dict[str, Any]) -> list[str]:
        """The arguments as words of a command line; no value of a client becomes an option."""
        if unknown := arguments.keys() - self._actions.keys():
            has = ", ".join(self._actions)
            raise _Refused(_PARAMETERS, f"{sorted(unknown)}: {self._command.name} takes {has}.")
        options: list[str] = []
        positions: list[str] = []
        for name, action in self._actions.items():
            value = arguments.get(name)
            if name == "lines" and value is None:
                value = _MAX_LINES
            if value is None or value is False:
                continue
            for one in value if isinstance(value, list) else [value]:
                if not action.option_strings:
                    # A URI would let whoever has talked the assistant into it connect elsewhere.
                    if "://" in str(one):
                        raise _Refused(_PARAMETERS, f"{one!r}: give a name or a path, not a URI.")
                    positions.append(str(one))
                elif action.nargs == 0:
                    options.append(action.option_strings[-1])
                else:
                    options.append(f"{action.option_strings[-1]}={one}")
        return [*options, "--", *positions]


class _Bounded(io.StringIO):
    """What a command prints, up to a bound: logs may be larger than the memory."""

    def write(self, text: str) -> int:
        if self.tell() + len(text) > _MAX_OUTPUT:
            raise ValueError(f"the answer has more than {_MAX_OUTPUT:,} characters: ask for less.")
        return super().write(text)


def _schema(action: argparse.Action) -> dict[str, Any]:
    if action.nargs == 0:
        kind: dict[str, Any] = {"type": "boolean"}
    else:
        kind = {"type": "integer" if isinstance(action.type, WholeNumber) else "string"}
        if action.choices:
            kind["enum"] = list(action.choices)
        if action.nargs == "+" or type(action).__name__ == "_AppendAction":
            kind = {"type": "array", "items": kind}
    text = (action.help or "").replace(" or URI", "").replace(" a URI,", "")
    if action.dest == "lines":
        text += f"; by default {_MAX_LINES}"
    return {**kind, "description": text}


def _thinned(text: str) -> str:
    """At most ``_MAX_POINTS`` points of each line: an assistant reads all of them."""
    lines = json.loads(text)
    for line in lines:
        points = line["points"]
        line["points"] = points[:: -(-len(points) // _MAX_POINTS)]
        if line["points"][-1] != points[-1]:
            line["points"].append(points[-1])
    return json.dumps(lines, ensure_ascii=False)


def _content(text: str, *, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def _answer(tools: dict[str, _Tool], method: str, given: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        asked = given.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in _VERSIONS else _VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "lockstep", "version": __version__},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [tool.described for tool in tools.values()]}
    if method == "tools/call":
        name, arguments = given.get("name"), given.get("arguments") or {}
        if not isinstance(name, str) or name not in tools:
            raise _Refused(_PARAMETERS, f"there is no tool {name!r}; there are {', '.join(tools)}.")
        if not isinstance(arguments, dict):
            raise _Refused(_PARAMETERS, "the arguments of a tool are an object.")
        return tools[name].call(arguments)
    raise _Refused(_METHOD, f"there is no method {method!r}.")


def _reply(tools: dict[str, _Tool], line: bytes) -> dict[str, Any] | None:
    """The answer to a line; None to a notification."""
    number: Any = None
    try:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _Refused(_PARSE, f"this is not JSON: {error}.") from None
        method = request.get("method") if isinstance(request, dict) else None
        given = request.get("params") or {} if isinstance(request, dict) else {}
        if not isinstance(method, str) or not isinstance(given, dict):
            raise _Refused(_REQUEST, "a request is an object with a method and, maybe, params.")
        number = request.get("id")
        if "id" not in request:
            return None
        return {"jsonrpc": "2.0", "id": number, "result": _answer(tools, method, given)}
    except _Refused as error:
        problem = {"code": error.code, "message": str(error)}
        return {"jsonrpc": "2.0", "id": number, "error": problem}


def _mcp(_options: argparse.Namespace) -> int:
    tools = {one.COMMAND.name: _Tool(one.COMMAND) for one in _COMMANDS}
    for line in sys.stdin.buffer:
        if line.strip() and (reply := _reply(tools, line)) is not None:
            print(json.dumps(reply), flush=True)
    return 0


COMMAND = Command(
    "mcp",
    "lets assistants look at runs, over the Model Context Protocol; it only reads",
    ("lockstep mcp    serves on stdin and stdout, until stdin ends",),
    lambda parser: None,
    _mcp,
    has_json=False,
)
