"""``lockstep mcp``, as an assistant's client uses it: a process, a JSON-RPC message a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from tests.integration.runs import fit
from tests.repository import SRC

Ask = Callable[..., dict[str, Any]]


def losses(config: dict[str, int]) -> None:
    for step in range(config["n"]):
        print("step", step)
        train.report({"loss": 1 / (step + 1)})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: ``short`` of 3 reports, ``long`` of 450."""
    root = tmp_path_factory.mktemp("results")
    for name, reports in ("short", 3), ("long", 450):
        fit(losses, workers=1, config={"n": reports}, name=name, storage_path=str(root))
    return root


@pytest.fixture(scope="module")
def send(root: Path) -> Iterator[Callable[[str], Any]]:
    """Send a line to the server's process; returns its answer."""
    environment = {**os.environ, "PYTHONPATH": str(SRC), "LOCKSTEP_STORAGE": str(root)}
    with subprocess.Popen(
        [sys.executable, "-m", "lockstep", "mcp"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def send(line: str) -> Any:
            stdin.write(line + "\n")
            stdin.flush()
            return json.loads(stdout.readline())

        yield send
        stdin.close()
        assert stdout.read() == ""
        assert server.wait(120) == 0


@pytest.fixture
def ask(send: Callable[[str], Any]) -> Ask:
    def ask(method: str, **params: Any) -> dict[str, Any]:
        answer = send(json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))
        assert answer["jsonrpc"] == "2.0"
        assert answer["id"] == 7
        found: dict[str, Any] = answer.get("result") or answer["error"]
        return found

    return ask


def called(ask: Ask, tool: str, **arguments: Any) -> Any:
    """What a tool has answered, as data."""
    answer = ask("tools/call", name=tool, arguments=arguments)
    assert answer["isError"] is False, answer
    return json.loads(answer["content"][0]["text"])


def test_a_session_begins(ask: Ask, send: Callable[[str], Any]) -> None:
    began = ask("initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo={})
    assert began["protocolVersion"] == "2025-03-26"
    assert began["capabilities"] == {"tools": {}}
    assert ask("initialize", protocolVersion="1999-01-01")["protocolVersion"] == "2025-06-18"
    # A notification has no answer: the next one is that of the ping.
    ping = json.dumps({"jsonrpc": "2.0", "id": "a", "method": "ping"})
    answer = send(f'{{"jsonrpc": "2.0", "method": "notifications/initialized"}}\n{ping}')
    assert answer == {"jsonrpc": "2.0", "id": "a", "result": {}}


def test_the_tools_are_the_commands_that_only_read(ask: Ask) -> None:
    tools = {tool["name"]: tool for tool in ask("tools/list")["tools"]}
    assert list(tools) == ["ls", "show", "why", "logs", "plot", "compare", "env"]
    assert all(tool["annotations"] == {"readOnlyHint": True} for tool in tools.values())
    logs = tools["logs"]["inputSchema"]
    assert list(logs["properties"]) == ["run", "rank", "grep", "lines"]  # and nothing that waits
    assert logs["required"] == ["run"]
    assert logs["properties"]["rank"]["type"] == "array"
    assert logs["properties"]["rank"]["items"] == {"type": "integer"}
    assert "URI" not in json.dumps(tools)
    assert tools["plot"]["inputSchema"]["required"] == ["run", "metric"]
    listed = tools["ls"]["inputSchema"]["properties"]
    assert listed["failed"]["type"] == "boolean"
    assert listed["sort"]["enum"] == ["age", "name", "reports", "state"]


def test_every_tool_answers_what_its_command_prints(ask: Ask) -> None:
    assert [run["experiment"] for run in called(ask, "ls", sort="name")] == ["long", "short"]
    assert called(ask, "ls", failed=True) == []
    assert called(ask, "show", run="short")["reports"] == 3
    assert called(ask, "show", run="-1")["reports"] == 450
    assert called(ask, "why", run="short")["goodput"]["compute"] > 0
    assert called(ask, "plot", run=["short"], metric="loss")[0]["points"][1] == [2.0, 0.5]
    compared = called(ask, "compare", a="short", b="long")
    assert len(compared["runs"]) == 2
    assert called(ask, "env", run="short")["python"]
    line = called(ask, "logs", run="short", rank=[0], grep="step 2")
    assert line == {"rank": 0, "line": "step 2"}


def test_answers_are_short_enough_for_an_assistant(ask: Ask) -> None:
    points = called(ask, "plot", run=["long"], metric="loss")[0]["points"]
    assert 100 < len(points) <= 201
    assert points[0] == [1.0, 1.0]
    assert points[-1] == [450.0, 1 / 450]
    answer = ask("tools/call", name="logs", arguments={"run": "long"})
    assert len(answer["content"][0]["text"].splitlines()) == 200


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("show", {"run": "nothing"}, "nothing"),
        ("show", {}, "required: RUN"),
        ("plot", {"run": ["short"], "metric": "los"}, "it has loss"),
        ("logs", {"run": "short", "rank": ["first"]}, "'first' is not a whole number"),
        ("logs", {"run": "--follow"}, "--follow"),
    ],
)
def test_a_call_that_fails_says_why(
    ask: Ask, tool: str, arguments: dict[str, Any], text: str
) -> None:
    answer = ask("tools/call", name=tool, arguments=arguments)
    assert answer["isError"] is True
    assert text in answer["content"][0]["text"]


def test_lines_that_do_not_match(ask: Ask) -> None:
    answer = ask("tools/call", name="logs", arguments={"run": "short", "grep": "no such line"})
    assert answer["content"][0]["text"] == "Nothing was found."


def test_a_request_that_is_wrong_is_refused(ask: Ask, send: Callable[[str], Any]) -> None:
    assert send("no JSON")["error"]["code"] == -32700
    assert send("[]")["error"]["code"] == -32600
    assert ask("resources/list")["code"] == -32601
    assert ask("tools/call", name="rm")["code"] == -32602
    assert ask("tools/call", name="ls", arguments=[1])["code"] == -32602
    unknown = ask("tools/call", name="logs", arguments={"run": "short", "follow": True})
    assert "logs takes run, rank, grep, lines" in unknown["message"]
    away = ask("tools/call", name="show", arguments={"run": "s3://bucket/run"})
    assert "give a name or a path, not a URI" in away["message"]


def test_a_line_that_nests_too_deeply_is_refused(send: Callable[[str], Any]) -> None:
    assert send("[" * 200_000)["error"]["code"] == -32700
