"""``prepare_model``: device, mixed precision and the parallel strategy of a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from lockstep.train import api
from lockstep.train.torch import amp
from lockstep.train.torch.collectives import measure_collectives
from lockstep.train.worker import session as sessions
from lockstep.train.worker.torch_device import get_device

if TYPE_CHECKING:
    import torch

__all__ = ["prepare_model", "unwrap_model"]

_STRATEGIES = ("ddp", "fsdp", None)
_NOT_GIVEN: Any = object()
_WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel, and of torch.compile


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    wrap_ddp: bool | str | None = _NOT_GIVEN,
    ddp_kwargs: Mapping[str, Any] | None = None,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Move the model to this worker's device, and train it in parallel with the other workers.

    With one worker the model is not wrapped. The names in its ``state_dict()`` start with
    ``module.`` only if it is wrapped; save ``unwrap_model(model).state_dict()``, whose names are
    always the same. The model's ``load_state_dict`` takes the names in either form.

    Args:
        model: the model; returned itself if it is not wrapped.
        move_to_device: whether to move the model, or the device to move it to.
        wrap_ddp: ``False`` is the older form of ``parallel_strategy=None``. A strategy's name or
            None is also accepted: the third argument is the strategy in newer versions of the API.
        ddp_kwargs: the older name of ``parallel_strategy_kwargs``.
        parallel_strategy: ``"ddp"`` for ``DistributedDataParallel``, ``"fsdp"`` for
            ``fully_shard`` (FSDP2), or None.
        parallel_strategy_kwargs: arguments of the strategy. ``"fsdp"`` uses
            ``FullyShardedDataParallel`` if one of these arguments, such as ``auto_wrap_policy``,
            belongs to it, or if torch has no ``fully_shard``.

    Raises:
        TypeError: ``model`` is not a ``torch.nn.Module``.
        ValueError: the strategy is unknown, or older and newer arguments contradict each other.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"prepare_model({model!r}): expected a torch.nn.Module.")
    strategy, options = _strategy(wrap_ddp, ddp_kwargs, parallel_strategy, parallel_strategy_kwargs)
    precision = amp.acceleration("prepare_model")
    device = _target(move_to_device)
    if device is not None:
        model = model.to(device)
    if precision.dtype is not None:
        amp.autocast_forward(model, device or get_device(), precision.dtype)
    if api.world_size() > 1 and strategy == "ddp":
        model = _ddp(model, options)
        measure_collectives(model)
        _let_guard_see(model)
    elif api.world_size() > 1 and strategy == "fsdp":
        model = _fsdp(model, device or get_device(), options)
        _let_guard_see(model)
    elif api.world_size() == 1:
        _let_guard_see(model)
    if not isinstance(model, torch.jit.ScriptModule):  # which refuses such hooks
        # Public only since torch 2.5. First: FullyShardedDataParallel renames keys in a hook, too.
        register: Any = model._register_load_state_dict_pre_hook
        hooks: Any = model._load_state_dict_pre_hooks
        hooks.move_to_end(register(_EitherForm(), with_module=True).id, last=False)
    return model


def unwrap_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside ``DistributedDataParallel`` and ``torch.compile``, or the model.

    ``unwrap_model(model).state_dict()`` has the same names at every number of workers.
    """
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel

    while True:
        wrapped = isinstance(model, DistributedDataParallel)
        inner = model.module if wrapped else getattr(model, "_orig_mod", None)
        if not isinstance(inner, Module):
            return model
        model = inner


class _EitherForm:
    """A hook for ``load_state_dict``: takes names with or without the prefixes of wrappers."""

    def __call__(
        self, model: torch.nn.Module, state: MutableMapping[str, Any], prefix: str, *_: Any
    ) -> None:
        own = [
            name
            for named in (model.named_parameters, model.named_buffers)
            for name, _ in named(remove_duplicate=False)
        ]
        given = [key.removeprefix(prefix) for key in state if key.startswith(prefix)]
        has, needs = _wrapper_prefix(given), _wrapper_prefix(own)
        if has == needs or not given or not set(given).isdisjoint(own):
            return
        for name in given:
            state[prefix + needs + name.removeprefix(has)] = state.pop(prefix + name)
        versions = getattr(state, "_metadata", None) or {}  # of modules' formats, by their names
        for name in list(versions):
            path = name and f"{name}."
            if path.startswith(has):
                versions.setdefault((needs + path.removeprefix(has))[:-1], versions[name])

    def __deepcopy__(self, memo: dict[int, Any]) -> _EitherForm:
        return self

    def __reduce__(self) -> Any:
        # In a pickled model the hook is a function that does nothing, and which Python has: the
        # model loads without lockstep.
        return getattr, ("", "format")


def _wrapper_prefix(names: list[str]) -> str:
    """The prefix of wrappers that all names have."""
    for known in _WRAPPERS:
        if names and all(name.startswith(known) for name in names):
            return known + _wrapper_prefix([name.removeprefix(known) for name in names])
    return ""


def _target(move_to_device: bool | torch.device) -> torch.device | None:
    if isinstance(move_to_device, bool):
        return get_device() if move_to_device else None
    import torch

    return torch.device(move_to_device)


def _let_guard_see(model: torch.nn.Module) -> None:
    session = sessions.current()
    if session is not None:
        session.show_guard(model)


def _strategy(
    wrap_ddp: bool | str | None,
    ddp_kwargs: Mapping[str, Any] | None,
    strategy: str | None,
    kwargs: Mapping[str, Any] | None,
) -> tuple[str | None, dict[str, Any]]:
    if isinstance(wrap_ddp, str):
        strategy, kwargs, ddp_kwargs = wrap_ddp, kwargs or ddp_kwargs, None
        wrap_ddp = _NOT_GIVEN
    if strategy not in _STRATEGIES:
        raise ValueError(
            f"prepare_model(parallel_strategy={strategy!r}): expected 'ddp', 'fsdp' or None."
        )
    if wrap_ddp is True and strategy != "ddp":
        raise ValueError(
            f"prepare_model(wrap_ddp=True, parallel_strategy={strategy!r}) contradicts itself; "
            "leave wrap_ddp out."
        )
    if ddp_kwargs and kwargs:
        raise ValueError(
            "prepare_model() got ddp_kwargs and parallel_strategy_kwargs, two names of one "
            "argument; give only the second."
        )
    if ddp_kwargs and strategy == "fsdp":
        raise ValueError(
            "prepare_model(ddp_kwargs=…, parallel_strategy='fsdp') contradicts itself; "
            "give parallel_strategy_kwargs."
        )
    if wrap_ddp in (False, None) and strategy == "ddp":
        strategy = None
    return strategy, dict(kwargs or ddp_kwargs or {})


def _ddp(model: torch.nn.Module, options: dict[str, Any]) -> torch.nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) == 1 and (device := devices.pop()).type != "cpu":
        options = {"device_ids": [device], "output_device": device, **options}
    return DistributedDataParallel(model, **options)


def _fsdp(model: torch.nn.Module, device: torch.device, options: dict[str, Any]) -> torch.nn.Module:
    from torch.distributed import fsdp

    older = fsdp.FullyShardedDataParallel
    needs_older = options.keys() & inspect.signature(older).parameters.keys()
    if needs_older or not hasattr(fsdp, "fully_shard"):  # new in torch 2.6
        amp.share_scaler(device)
        return older(model, **{"device_id": device, **options})
    from torch.distributed.device_mesh import init_device_mesh

    if "mesh" not in options:
        # The default mesh is on GPUs, also for workers that have none.
        options["mesh"] = init_device_mesh(device.type, (api.world_size(),))
    fsdp.fully_shard(model, **options)  # in place
    return model
