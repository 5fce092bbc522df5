"""``train.State``: everything that a training function needs to resume, as one object."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.checkpoint import Checkpoint
from lockstep.errors import CheckpointError
from lockstep.state.files import StoredState
from lockstep.state.tree import TreeEncoder
from lockstep.train.worker.overlap import changed_by_steps
from lockstep.train.worker.session import current
from lockstep.train.worker.snapshot import Captured, StateBase

__all__ = ["State"]

_RNG = "rng"
_RESERVED = frozenset((_RNG, "capture", "restore"))


class State(StateBase):
    """What a training function resumes from: models, optimizers, counters, random numbers.

    Each keyword is an entry: an object with ``state_dict()`` and ``load_state_dict()`` (a model,
    wrapped or not, an optimizer, a scheduler, a scaler, a data loader that has a state), a random
    generator of torch or numpy, or a plain value: numbers, strings, tensors, arrays, and lists and
    dicts of these. An entry is an attribute: ``state.epoch += 1``. ::

        state = train.State(model=model, optimizer=optimizer, epoch=0)
        state.restore()
        for epoch in range(state.epoch, 10):
            ...
            state.epoch = epoch + 1
            train.report({"loss": loss}, checkpoint=state)

    ``report`` returns as soon as the state is copied; it is written while training continues. The
    files are safetensors and JSON.

    Models and optimizers are expected to be the same on every rank, and the ranks divide the work
    of writing them; where they are not the same, each rank writes its own. Of sharded models
    (FSDP2, DTensor) each rank writes its shards. Everything else is each rank's own, and
    each rank gets its own back. With another number of workers, ranks that did not exist before
    get rank 0's.

    Args:
        rng: also keep the states of the random generators of Python, numpy and torch (CPU, and
            this worker's GPU), so that the resumed run equals one that was not interrupted.
        entries: the entries by name.

    Raises:
        TypeError: a value cannot be kept, and where it is; or a value has no name.
        ValueError: an entry has the name of a method.
    """

    def __init__(self, *unnamed: Any, rng: bool = True, **entries: Any) -> None:
        if unnamed:
            raise TypeError(
                f"State({type(unnamed[0]).__name__}, …): each entry needs a name, such as "
                "State(model=model, epoch=0)."
            )
        if not isinstance(rng, bool):
            raise TypeError(f"State(rng={rng!r}): expected True or False.")
        if not entries:
            raise ValueError("State(): give what is to be kept, such as model=…, epoch=0.")
        taken = sorted(name for name in entries if name in _RESERVED or name.startswith("_"))
        if taken:
            raise ValueError(
                f"State({taken[0]}=…): an entry cannot have this name; choose another, without an "
                "underscore at its beginning."
            )
        object.__setattr__(self, "_entries", entries)
        object.__setattr__(self, "_rng", rng)
        session = current()
        if session is not None:
            session.show_guard(state=self)
        self.capture()  # what cannot be kept is an error now, not after an epoch

    def __getattr__(self, name: str) -> Any:
        entries = vars(self).get("_entries", {})
        if name in entries:
            return entries[name]
        raise AttributeError(_no_entry(name, entries))

    def __setattr__(self, name: str, value: Any) -> None:
        entries = vars(self)["_entries"]
        if name not in entries:
            raise AttributeError(_no_entry(name, entries))
        entries[name] = value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *vars(self)["_entries"]})

    def __repr__(self) -> str:
        return f"State({', '.join(vars(self)['_entries'])})"

    def restore(self, checkpoint: Checkpoint | None = None) -> bool:
        """Load the entries from a checkpoint; whether there was one.

        Nothing is loaded unless everything fits. Call it after the model is on its device and
        wrapped, before the first step.

        Args:
            checkpoint: by default the newest of the run, or the one that the run starts from.

        Raises:
            CheckpointError: the checkpoint has no training state, or not this one.
        """
        stored, rank = _stored(checkpoint)
        if stored is None:
            return False
        nodes = stored.nodes(rank)
        entries: dict[str, Any] = vars(self)["_entries"]
        missing = [name for name in entries if name not in nodes]
        if missing:
            there = ", ".join(name for name in nodes if name != _RNG)
            raise CheckpointError(
                f"{stored.where} has no entry {missing[0]!r}; it has {there}. Restore a State with "
                "the entries that were saved, and then create another one that has the new ones, "
                "too."
            )
        loads = [
            _Load(name, value, _tree(stored, rank, name, value, nodes[name]), stored.where)
            for name, value in entries.items()
        ]
        for load in loads:
            load.check()
        unused = [name for name in nodes if name not in entries and name != _RNG]
        if unused:
            warnings.warn(
                f"The checkpoint {stored.where} has the entry {unused[0]!r}, which this State does "
                "not have: it is not restored.",
                stacklevel=2,
            )
        session = current()
        if session is not None:
            session.settle_copy()  # before anything is overwritten
        keeps_rng = vars(self)["_rng"] and _RNG in nodes and stored.has_rank(rank)
        rng = stored.decode(rank, _RNG, nodes[_RNG]) if keeps_rng else None
        for load in loads:
            entries[load.name] = load.apply()
        if rng is not None:
            _set_rng(rng)
        return True

    def capture(self) -> Captured:
        """Internal: the state as it is now."""
        encoder = TreeEncoder()
        nodes: dict[str, Any] = {}
        kinds: dict[str, str] = {}
        shared: dict[str, frozenset[str]] = {}
        for name, value in vars(self)["_entries"].items():
            kind = kinds[name] = _kind(name, value)
            before = len(encoder.leaves)
            nodes[name] = encoder.encode(name, _state_of(kind, value))
            if kind in ("model", "optimizer"):
                added = list(encoder.leaves.values())[before:]
                own = _buffers(name, value) if kind == "model" else frozenset()
                shared[name] = frozenset(
                    leaf.name for leaf in added if leaf.chunk is None and leaf.name not in own
                )
        if vars(self)["_rng"]:
            nodes[_RNG] = encoder.encode(_RNG, _get_rng())
            kinds[_RNG] = "random"
        entries = vars(self)["_entries"]
        optimizers = {name: entries[name] for name in kinds if kinds[name] == "optimizer"}
        models = [name for name in kinds if kinds[name] == "model"]
        stepped = changed_by_steps(optimizers, models, encoder.leaves)
        return Captured(nodes, kinds, encoder.leaves, shared, stepped)


def _no_entry(name: str, entries: Mapping[str, Any]) -> str:
    from difflib import get_close_matches  # only for the message

    meant = get_close_matches(name, entries, 1)
    hint = f" Did you mean {meant[0]!r}?" if meant else ""
    return (
        f"This State has no entry {name!r}, only {', '.join(entries)}.{hint} An entry is given "
        f"when the State is created: State({name}=…, …)."
    )


def _stored(checkpoint: Checkpoint | None) -> tuple[StoredState | None, int]:
    session = current()
    rank = 0 if session is None else session.context.world_rank
    if checkpoint is None:
        if session is None:
            raise CheckpointError(
                "state.restore() outside a training function needs a checkpoint: "
                "state.restore(result.checkpoint)."
            )
        found = session.start_state()
        if not isinstance(found, Checkpoint):
            return found, rank
        checkpoint = found
    if not isinstance(checkpoint, Checkpoint):
        raise TypeError(f"state.restore({checkpoint!r}): expected a Checkpoint.")
    if checkpoint.storage is None:
        raise CheckpointError(
            f"state.restore({checkpoint!r}): a checkpoint that is only in memory has no training "
            "state; use its to_dict()."
        )
    return StoredState.read(checkpoint.storage), rank


# ------------------------------------------------------------------------------- kinds of entries


def _kind(name: str, value: Any) -> str:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        if isinstance(value, torch.nn.Module):
            _refuse_old_shards(name, value)
            return "model"
        if isinstance(value, torch.Generator):
            return "torch generator"
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return "numpy generator"
    if isinstance(value, type):
        return "value"  # refused as a value, with its name
    saves, loads = (callable(getattr(value, f"{verb}state_dict", None)) for verb in ("", "load_"))
    if not saves and not loads:
        return "value"
    if not (saves and loads):
        lacks = "load_state_dict" if saves else "state_dict"
        raise TypeError(
            f"State({name}={type(value).__name__}): it has no {lacks}(), so it could not be "
            "restored; give an object that has both, or its plain values."
        )
    if type(value).__module__.startswith("lockstep.data"):
        return "dataset"
    return "optimizer" if hasattr(value, "param_groups") else "state_dict"


def _refuse_old_shards(name: str, model: Any) -> None:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    if any(isinstance(part, fsdp.FullyShardedDataParallel) for part in model.modules()):
        raise TypeError(
            f"State({name}=…): a model in FullyShardedDataParallel does not say which part of it "
            "is on which rank; use fully_shard, prepare_model(parallel_strategy='fsdp') without "
            "arguments of the older class."
        )


def _unwrapped(model: Any) -> Any:
    from lockstep.train.torch.model import unwrap_model

    return unwrap_model(model)


def _state_of(kind: str, value: Any) -> Any:
    if kind == "model":
        return _unwrapped(value).state_dict()
    if kind in ("optimizer", "state_dict"):
        return value.state_dict()
    if kind == "torch generator":
        return value.get_state()
    if kind == "numpy generator":
        return value.bit_generator.state
    # Where a dataset's shard resumes is kept with every checkpoint, for any number of workers.
    return None if kind == "dataset" else value


def _buffers(name: str, model: Any) -> frozenset[str]:
    """A model's buffers: statistics of batches, for example, which ranks have of their own."""
    named = _unwrapped(model).named_buffers(remove_duplicate=False)
    return frozenset(f"{name}.{path}" for path, _ in named)


# ---------------------------------------------------------------------------------------- loading


def _tree(stored: StoredState, rank: int, name: str, value: Any, node: Any) -> Any:
    """The stored value of an entry. Of divided tensors, the part that is this rank's now."""
    torch: Any = sys.modules.get("torch")
    copied = _copies(value)
    if torch is None or not any(_divided(tensor) for tensor in _tensors(value)):
        return stored.decode(rank, name, node, copied=copied)
    specs = dict(_specs(name, value))

    def shard(leaf: str, shape: tuple[int, ...]) -> Any:
        spec = _spec_for(specs, leaf, shape)
        return None if spec is None else _part_of(spec)

    tree = stored.decode(rank, name, node, shard, copied=copied)
    return _divide_again(tree, specs, name)


def _copies(value: Any) -> bool:
    """Whether loading copies large tensors: a model always, an optimizer to another device."""
    if hasattr(value, "param_groups"):
        return all(tensor.is_cuda for tensor in _tensors(value))
    return hasattr(value, "parameters")


def _tensors(value: Any) -> Iterator[Any]:
    if _divided(value):
        yield value
    elif hasattr(value, "param_groups"):
        for group in value.param_groups:
            yield from group["params"]
    elif hasattr(value, "parameters"):
        yield from value.parameters()
        yield from value.buffers()


def _divided(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")


def _specs(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The divided tensors of a model by name, or those of an optimizer by what belongs to them."""
    if _divided(value):
        yield name, value
        return
    if hasattr(value, "param_groups"):
        for number, tensor in enumerate(_tensors(value)):
            if _divided(tensor):
                yield f"{name}.state.{number}.", tensor
        return
    for path, tensor in _unwrapped(value).state_dict().items():
        if _divided(tensor):
            yield f"{name}.{path}", tensor


def _spec_for(specs: Mapping[str, Any], leaf: str, shape: tuple[int, ...]) -> Any:
    spec = specs.get(leaf)
    if spec is None:  # of an optimizer: the tensor's values have its shape
        spec = specs.get(leaf[: leaf.rfind(".") + 1])
    return spec if spec is not None and tuple(spec.shape) == shape else None


def _part_of(spec: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of this rank's part of a divided tensor, and where it begins."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        spec.shape, spec.device_mesh, spec.placements
    )
    return tuple(shape), tuple(offset)


def _divide_again(tree: Any, specs: Mapping[str, Any], path: str) -> Any:
    """The same tree with this rank's parts as divided tensors."""
    if isinstance(tree, dict):
        for key, inner in tree.items():
            tree[key] = _divide_again(inner, specs, f"{path}.{key}")
        return tree
    torch: Any = sys.modules["torch"]
    if not isinstance(tree, torch.Tensor):
        return tree
    spec = specs.get(path)
    if spec is None:
        spec = specs.get(path[: path.rfind(".") + 1])
        if spec is None or not tree.dim():
            return tree
    from torch.distributed.tensor import DTensor

    local = spec.to_local()
    if tree.shape == spec.shape:  # saved as a whole
        sizes, begins = _part_of(spec)
        tree = tree[tuple(slice(at, at + n) for at, n in zip(begins, sizes, strict=True))]
    if tree.shape != local.shape:
        return tree  # another model: the check says so
    return DTensor.from_local(
        tree.to(local.device),
        spec.device_mesh,
        spec.placements,
        run_check=False,
        shape=spec.shape,
        stride=spec.stride(),
    )


class _Load:
    """One entry that is being restored."""

    def __init__(self, name: str, value: Any, tree: Any, where: str) -> None:
        self.name = name
        self._value = value
        self._tree = tree
        self._where = where
        self._kind = _kind(name, value)

    def check(self) -> None:
        """Make sure that it fits, before anything is loaded."""
        if self._kind == "model":
            self._check_model()
        elif self._kind == "optimizer":
            self._check_optimizer()

    def apply(self) -> Any:
        """Load it; returns the entry's value from now on."""
        kind, value, tree = self._kind, self._value, self._tree
        try:
            if kind == "model":
                _unwrapped(value).load_state_dict(tree)
            elif kind in ("optimizer", "state_dict"):
                value.load_state_dict(tree)
            elif kind == "torch generator":
                value.set_state(tree.clone())
            elif kind == "numpy generator":
                value.bit_generator.state = tree
            elif kind == "value":
                return _refilled(value, tree)
        except CheckpointError:
            raise
        except Exception as error:
            raise self._unfit(f"{type(error).__name__}: {error}") from error
        return value

    def _unfit(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"The entry {self.name!r} of {self._where} does not fit this State: {what.rstrip('.')}."
            " Create the objects as they were when it was saved, or choose another checkpoint."
        )

    def _check_model(self) -> None:
        own = _unwrapped(self._value).state_dict()
        if not isinstance(self._tree, dict):
            raise self._unfit(f"a {type(self._tree).__name__} was saved, and here is a model")
        problems = [f"it has no {key!r}" for key in own if key not in self._tree]
        problems += [f"the model has no {key!r}" for key in self._tree if key not in own]
        for key, tensor in own.items():
            saved: Any = self._tree.get(key)
            if hasattr(tensor, "shape") and hasattr(saved, "shape") and tensor.shape != saved.shape:
                shapes = f"{tuple(saved.shape)} in the checkpoint and {tuple(tensor.shape)} here"
                problems.append(f"{key!r} is {shapes}")
        if problems:
            more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
            raise self._unfit("; ".join(problems[:3]) + more)

    def _check_optimizer(self) -> None:
        groups = self._tree.get("param_groups") if isinstance(self._tree, dict) else None
        if not isinstance(groups, list):
            raise self._unfit("it was no optimizer when it was saved")
        own = [len(group["params"]) for group in self._value.param_groups]
        saved = [len(group["params"]) for group in groups]
        if own != saved:
            raise self._unfit(
                f"its groups have {saved} parameters, and those of this optimizer {own}"
            )


def _refilled(value: Any, saved: Any) -> Any:
    """A plain value. A tensor or an array that exists gets the content, where that fits."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and isinstance(saved, torch.Tensor):
        if value.shape == saved.shape and value.dtype == saved.dtype:
            with torch.no_grad():
                return value.copy_(saved)
        return saved.to(value.device)
    numpy: Any = sys.modules.get("numpy")
    arrays = numpy is not None and all(isinstance(one, numpy.ndarray) for one in (value, saved))
    if not arrays or value.shape != saved.shape or value.dtype != saved.dtype:
        return saved
    if not value.flags.writeable:
        return saved
    value[...] = saved
    return value


# ----------------------------------------------------------------------------------------- random


def _get_rng() -> dict[str, Any]:
    found: dict[str, Any] = {"python": random.getstate()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = numpy.random.get_state()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.random.get_rng_state()
        if torch.cuda.is_initialized():
            found["cuda"] = torch.cuda.get_rng_state()
    return found


def _set_rng(saved: Mapping[str, Any]) -> None:
    random.setstate(saved["python"])
    if "numpy" in saved:
        import numpy

        numpy.random.set_state(saved["numpy"])
    torch: Any = sys.modules.get("torch")
    if torch is not None and "torch" in saved:
        torch.random.set_rng_state(saved["torch"].clone())
        if "cuda" in saved and torch.cuda.is_available():
            torch.cuda.set_rng_state(saved["cuda"].clone())
