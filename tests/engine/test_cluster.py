"""What fits on a cluster, without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lockstep.engine import GroupSpec
from lockstep.engine.base import Node
from lockstep.engine.cluster import (
    ClusterNode,
    bundle_of,
    describe_nodes,
    describe_request,
    matches,
    ranks_by_node,
    room_on,
)


def spec(size: int = 1, **more: Any) -> GroupSpec:
    return GroupSpec(size, "", b"", **more)


def node(name: str, labels: Mapping[str, str] | None = None, **total: float) -> ClusterNode:
    return ClusterNode(Node(name, f"10.0.0.{name}"), total, total, labels or {})


NODES = [node("1", {"zone": "a"}, CPU=4), node("2", {"zone": "b"}, CPU=2, GPU=2, disk=1)]


@pytest.mark.parametrize(
    ("asked", "room"),
    [
        ({}, 6),
        ({"cpus_per_worker": 2}, 3),
        ({"cpus_per_worker": 0}, 60_000),  # the smallest part of a CPU
        ({"cpus_per_worker": 0.1, "resources": {"disk": 0.5}}, 2),
        ({"resources": {"tape": 1}}, 0),
        ({"gpus_per_worker": 1}, 2),
        ({"gpus_per_worker": 0.4, "cpus_per_worker": 0.5}, 4),  # two on each GPU, not five in all
        ({"placement_strategy": "SPREAD"}, 6),
        ({"placement_strategy": "STRICT_PACK"}, 4),
        ({"placement_strategy": "STRICT_SPREAD"}, 2),
        ({"placement_strategy": "STRICT_SPREAD", "cpus_per_worker": 3}, 1),
        ({"label_selectors": ({"zone": "a"},)}, 4),
        ({"label_selectors": ({"zone": "c"},)}, 0),
        ({"label_selectors": ({"zone": "!a"},)}, 2),
    ],
)
def test_room(asked: dict[str, Any], room: int) -> None:
    assert room_on(NODES, spec(**asked)) == room


@pytest.mark.parametrize(
    ("zones", "more", "room"),
    [
        (["a", "b"], {}, 2),
        (["b", "b", "b"], {}, 2),
        (["in(a,b)", "b", "b"], {}, 3),  # the one with a choice leaves room for the others
        (["a", "c"], {}, 1),
        (["a", "a"], {"placement_strategy": "STRICT_SPREAD"}, 1),
        (["in(a,b)", "a"], {"placement_strategy": "STRICT_PACK"}, 4),
    ],
)
def test_room_for_workers_with_labels_of_their_own(
    zones: list[str], more: dict[str, Any], room: int
) -> None:
    selectors = tuple({"zone": zone} for zone in zones)
    assert room_on(NODES, spec(len(zones), label_selectors=selectors, **more)) == room


def test_what_others_use_is_no_room() -> None:
    busy = [one._replace(free={**one.total, "CPU": 1}) for one in NODES]
    assert room_on(busy, spec()) == 2
    assert "4 CPU (1 free)" in describe_nodes(busy, spec())


def test_labels() -> None:
    labels = {"zone": "a"}
    assert matches(labels, {})
    assert matches(labels, {"zone": "in(a, b)"})
    assert not matches(labels, {"zone": "!in(a,b)"})
    assert matches(labels, {"rack": "!1"})  # a label that is not there is not that
    assert not matches(labels, {"rack": "1"})


def test_ranks_of_a_node_are_next_to_each_other() -> None:
    places = ["b", "a", "b", "c", "a"]
    assert [places[index] for index in ranks_by_node(places)] == ["b", "b", "a", "a", "c"]


def test_texts() -> None:
    asked = spec(
        3, resources={"disk": 1.0}, placement_strategy="SPREAD", label_selectors=({"zone": "a"},)
    )
    assert bundle_of(asked) == {"CPU": 1.0, "disk": 1.0}
    assert describe_request(asked) == (
        "3 worker(s) with 1 CPU, 1 disk each, placement_strategy='SPREAD', "
        "label_selector={'zone': 'a'}"
    )
    text = describe_nodes(NODES * 6, asked)
    assert text.startswith("12 node(s): 10.0.0.1 with 4 CPU, 0 GPU, 0 disk and labels {'zone': ")
    assert text.endswith("; 4 more")
    assert describe_nodes([], asked) == "no node"
