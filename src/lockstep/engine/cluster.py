"""What a cluster has, what a worker group asks of it, and what fits. Pure: no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockstep.engine.base import GroupSpec, Node

__all__ = [
    "ClusterNode",
    "Placement",
    "amounts",
    "bundle_of",
    "describe_nodes",
    "describe_request",
    "matches",
    "ranks_by_node",
    "room_on",
    "selectors_of",
]

_SMALLEST = 0.0001
_ROUNDING = 1e-9
_SHOWN_NODES = 8


class ClusterNode(NamedTuple):
    """A node of the cluster that is alive."""

    node: Node
    total: Mapping[str, float]
    """All of its resources, by name."""
    free: Mapping[str, float]
    """What others than this driver leave of them."""
    labels: Mapping[str, str] = {}


@dataclass(frozen=True)
class Placement:
    """Where the workers of a group go."""

    handle: Any
    """What the cluster reserved, as the cluster's own object."""
    nodes: list[Node]
    """Rank → node; the ranks of a node are next to each other."""
    gpus: list[list[str]] = field(default_factory=list)
    """Rank → its GPUs."""
    request: Any = None
    """What was asked for, to be compared."""


def bundle_of(spec: GroupSpec) -> dict[str, float]:
    """What one worker reserves; one CPU if the user did not say."""
    wanted = {
        "CPU": 1.0 if spec.cpus_per_worker is None else float(spec.cpus_per_worker),
        "GPU": float(spec.gpus_per_worker),
        **spec.resources,
    }
    # A worker without any resource still has to be placed somewhere.
    return {name: amount for name, amount in wanted.items() if amount} or {"CPU": _SMALLEST}


def selectors_of(spec: GroupSpec) -> list[Mapping[str, str]]:
    """The labels that each worker's node must have; one mapping in ``spec`` is for all workers."""
    chosen = spec.label_selectors
    return list(chosen) if len(chosen) == spec.size else [chosen[0] if chosen else {}] * spec.size


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node with these labels may be used: ``a``, ``!a``, ``in(a,b)`` or ``!in(a,b)``."""
    for name, wanted in selector.items():
        positive = not wanted.startswith("!")
        text = wanted.removeprefix("!")
        values = [text]
        if text.startswith("in(") and text.endswith(")"):
            values = [value.strip() for value in text[3:-1].split(",")]
        if (labels.get(name) in values) is not positive:
            return False
    return True


def room_on(nodes: Sequence[ClusterNode], spec: GroupSpec) -> int:
    """How many workers like ``spec``'s the nodes have room for, placed as ``spec`` asks."""
    bundle = bundle_of(spec)
    if len({tuple(sorted(selector.items())) for selector in selectors_of(spec)}) > 1:
        return _room_one_by_one(nodes, spec, bundle)
    selector = selectors_of(spec)[0] if spec.size else {}
    rooms = [_room(node.free, bundle) if matches(node.labels, selector) else 0 for node in nodes]
    if spec.placement_strategy == "STRICT_PACK":
        return max(rooms, default=0)
    if spec.placement_strategy == "STRICT_SPREAD":
        return sum(room > 0 for room in rooms)
    return sum(rooms)


def _room_one_by_one(
    nodes: Sequence[ClusterNode], spec: GroupSpec, bundle: Mapping[str, float]
) -> int:
    """For workers with selectors of their own. Those with the fewest nodes choose first."""
    rooms = {index: _room(node.free, bundle) for index, node in enumerate(nodes)}
    if spec.placement_strategy == "STRICT_SPREAD":
        rooms = {index: min(room, 1) for index, room in rooms.items()}
    if spec.placement_strategy == "STRICT_PACK":
        every = {name: value for one in selectors_of(spec) for name, value in one.items()}
        rooms = {i: room for i, room in rooms.items() if matches(nodes[i].labels, every)}
        return max(rooms.values(), default=0)
    fitting = [
        [index for index, node in enumerate(nodes) if matches(node.labels, selector)]
        for selector in selectors_of(spec)
    ]
    placed = 0
    for choices in sorted(fitting, key=len):
        index = max(choices, key=lambda one: rooms.get(one, 0), default=None)
        if index is not None and rooms.get(index, 0) > 0:
            rooms[index] -= 1
            placed += 1
    return placed


def _room(free: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    rooms = []
    for name, amount in bundle.items():
        have = free.get(name, 0.0)
        if name == "GPU" and amount < 1:
            # A worker's part lies on one GPU: 0.4 fits twice on each.
            rooms.append(int(have + _ROUNDING) * int(1 / amount + _ROUNDING))
        else:
            rooms.append(math.floor(have / amount + _ROUNDING))
    return min(rooms)


def ranks_by_node(places: Sequence[str]) -> list[int]:
    """The bundles in the order of their ranks, where ``places`` has each bundle's node.

    A node's ranks are next to each other; nodes come in the order of their first bundle.
    """
    order = {place: index for index, place in reversed(list(enumerate(places)))}
    return sorted(range(len(places)), key=lambda index: (order[places[index]], index))


def amounts(resources: Mapping[str, float]) -> str:
    """Resources as text."""
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def describe_request(spec: GroupSpec) -> str:
    """What a group asks for, as text."""
    text = f"{spec.size} worker(s) with {amounts(bundle_of(spec))} each"
    if spec.placement_strategy != "PACK":
        text += f", placement_strategy={spec.placement_strategy!r}"
    if spec.label_selectors:
        chosen = spec.label_selectors
        shown = dict(chosen[0]) if len(chosen) == 1 else [dict(one) for one in chosen]
        text += f", label_selector={shown}"
    return text


def describe_nodes(nodes: Iterable[ClusterNode], spec: GroupSpec) -> str:
    """What the cluster has of what a group asks for, as text."""
    names = list(dict.fromkeys(("CPU", "GPU", *bundle_of(spec))))
    labels = list(dict.fromkeys(name for one in spec.label_selectors for name in one))
    texts = []
    for one in nodes:
        text = f"{one.node.address} with {_amounts_of(one, names)}"
        if labels:
            found = {name: one.labels[name] for name in labels if name in one.labels}
            text += f" and labels {found}"
        texts.append(text)
    more = len(texts) - _SHOWN_NODES
    shown = texts[:_SHOWN_NODES] + ([f"{more} more"] if more > 0 else [])
    return f"{len(texts)} node(s): {'; '.join(shown)}" if texts else "no node"


def _amounts_of(one: ClusterNode, names: Sequence[str]) -> str:
    parts = []
    for name in names:
        total, free = one.total.get(name, 0.0), one.free.get(name, 0.0)
        if free < total - _ROUNDING:
            parts.append(f"{total:g} {name} ({free:g} free)")
        else:
            parts.append(f"{total:g} {name}")
    return ", ".join(parts)
