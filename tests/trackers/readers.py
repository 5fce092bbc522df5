"""Reads the files that trackers have written, with the trackers' own formats and readers."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["CometArchive", "WandbFiles", "comet_archives", "scalars", "wandb_runs"]


@dataclass
class WandbFiles:
    """One offline run: the content of its ``.wandb`` file."""

    id: str = ""
    project: str = ""
    group: str = ""
    name: str = ""
    exit_code: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)


def wandb_runs(directory: Path) -> list[WandbFiles]:
    """The offline runs below ``directory``, oldest first."""
    import wandb

    wandb.teardown()  # its service may still be writing
    return [_wandb_run(path) for path in sorted(directory.glob("wandb/offline-run-*/*.wandb"))]


def _wandb_run(path: Path) -> WandbFiles:
    from wandb.proto import wandb_internal_pb2

    found = WandbFiles()
    for data in _log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            found.id, found.project, found.group = run.run_id, run.project, run.run_group
            found.name = run.display_name
            found.config.update(
                {item.key: json.loads(item.value_json) for item in run.config.update}
            )
        elif kind == "config":
            found.config.update(
                {item.key: json.loads(item.value_json) for item in record.config.update}
            )
        elif kind == "history":
            found.history.append(
                {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in record.history.item
                }
            )
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
        elif kind == "artifact":
            found.artifacts.append(record.artifact.name)
    return found


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log, the format of ``.wandb`` files: blocks of 32 KiB."""
    assert data[:4] == b":W&B"
    position, record = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        position += 7
        record += data[position : position + length]
        position += length
        if kind in (1, 4):  # full, last
            yield record
            record = b""


@dataclass
class CometArchive:
    """One offline archive."""

    key: str
    strategy: str
    tags: list[str]
    parameters: dict[str, Any] = field(default_factory=dict)
    metrics: list[tuple[str, float, int]] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def comet_archives(directory: Path) -> list[CometArchive]:
    """The archives in ``directory``, oldest first."""
    paths = sorted(directory.glob("*.zip"), key=lambda path: path.stat().st_mtime_ns)
    return [_comet_archive(path) for path in paths]


def _comet_archive(path: Path) -> CometArchive:
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("experiment.json"))
        lines = archive.read("messages.json").decode().splitlines()
    found = CometArchive(about["offline_id"], about["resume_strategy"], about["tags"])
    for message in map(json.loads, lines):
        payload = message["payload"]
        if message["type"] == "parameter_msg":
            found.parameters[payload["param"]["paramName"]] = payload["param"]["paramValue"]
        elif message["type"] == "metric_msg":
            metric = payload["metric"]
            found.metrics.append((metric["metricName"], metric["metricValue"], metric["step"]))
        elif message["type"] == "log_other":
            found.others[payload["key"]] = payload["value"]
        elif message["type"] == "file_upload":
            found.files.append((payload["additional_params"] or {}).get("fileName", ""))
    return found


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag → (step, value) of the event files in ``directory``, as TensorBoard reads them."""
    events = accumulated(directory)
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def accumulated(directory: Path) -> Any:
    """TensorBoard's own view of a directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return events
