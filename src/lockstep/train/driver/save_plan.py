"""How the ranks' files become one checkpoint: which rank writes what, under which name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lockstep.errors import CheckpointError
from lockstep.run_layout import DICT_FILE, DICT_FILES
from lockstep.train.protocol import CheckpointReport, Report

__all__ = [
    "SavePlan",
    "agreed_name",
    "differing_files",
    "has_part",
    "plan_save",
    "share_groups",
]


class SavePlan(NamedTuple):
    """Rank → the names it writes, and rank → the names another rank has as well."""

    write: dict[int, tuple[str, ...]]
    compare: dict[int, tuple[str, ...]]


def has_part(report: Report | None) -> bool:
    """Whether a rank has a part of the checkpoint; others may have reported metrics only."""
    return report is not None and report.checkpoint is not None


def agreed_name(parts: Mapping[int, CheckpointReport]) -> str | None:
    """The ``checkpoint_dir_name`` of the lowest rank that gave one, None where none did.

    Raises:
        CheckpointError: they gave different upload modes or, for what is not uploaded, different
            directories.
    """
    _check_agree("upload modes", "checkpoint_upload_mode", _each(parts, lambda p: p.mode.name))
    places = _each(parts, lambda part: part.location)
    _check_agree("directories and none is uploaded", "checkpoint", places)
    kinds = _each(parts, lambda part: "a State" if part.is_state else "a Checkpoint")
    _check_agree("kinds of objects", "kind of checkpoint", kinds)
    return next(iter(_each(parts, lambda part: part.dir_name).values()), None)


def _each(
    parts: Mapping[int, CheckpointReport], value: Callable[[CheckpointReport], str | None]
) -> dict[int, str]:
    values = ((rank, value(parts[rank])) for rank in sorted(parts))
    return {rank: text for rank, text in values if text is not None}


def _check_agree(what: str, argument: str, values: Mapping[int, str]) -> None:
    if len(set(values.values())) > 1:
        given = ", ".join(f"rank {rank}: {text}" for rank, text in values.items())
        raise CheckpointError(
            f"ranks reported their parts of one checkpoint with different {what} ({given}); "
            f"give all of them the same {argument}."
        )


def plan_save(parts: Mapping[int, CheckpointReport]) -> SavePlan:
    """Merge the ranks' files: where two have the same name, the lowest rank's is written.

    Raises:
        CheckpointError: what is a file for one rank is a directory for another.
    """
    owners: dict[str, list[int]] = {}
    # Sorted, so the lowest rank is the first owner of each name.
    for rank in sorted(parts):
        for name in parts[rank].files:
            owners.setdefault(_slot(name), []).append(rank)
    _check_clashes(owners)
    write = {
        rank: tuple(name for name in parts[rank].files if owners[_slot(name)][0] == rank)
        for rank in parts
    }
    # Two equal dicts can have different pickles (torch writes addresses into them), so comparing
    # dicts would warn without reason.
    compared = {name for name in owners if len(owners[name]) > 1 and name != DICT_FILE}
    compare = {rank: tuple(filter(compared.__contains__, parts[rank].files)) for rank in parts}
    return SavePlan(write, compare)


def _slot(name: str) -> str:
    """The name under which files compete: a checkpoint has one dict, plain or pickled."""
    return DICT_FILE if name in DICT_FILES else name


def _check_clashes(owners: Mapping[str, list[int]]) -> None:
    for name, (rank, *_) in owners.items():
        # Found here, before any rank writes: halfway through, files would be lost.
        above = name.rpartition("/")[0]
        while above:
            other = owners.get(above, [rank])[0]
            if other != rank:
                raise CheckpointError(
                    f"the ranks' parts do not fit into one checkpoint: {above!r} is a file of "
                    f"rank {other} and a directory of rank {rank} (with {name!r}); "
                    "rename one of them."
                )
            above = above.rpartition("/")[0]


def share_groups(
    digests: Mapping[int, Mapping[str, str]],
) -> dict[int, dict[str, tuple[int, ...]]]:
    """Rank → entry → the ranks, itself among them, whose tensors of the entry are the same."""
    same: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(digests):
        for entry, word in digests[rank].items():
            same.setdefault((entry, word), []).append(rank)
    return {
        rank: {entry: tuple(same[entry, word]) for entry, word in digests[rank].items()}
        for rank in digests
    }


def differing_files(fingerprints: Sequence[Mapping[str, int]]) -> list[str]:
    """Names that two ranks have with different content."""
    seen: dict[str, int] = {}
    differing = set()
    for part in fingerprints:
        for name, value in part.items():
            if seen.setdefault(name, value) != value:
                differing.add(name)
    return sorted(differing)
