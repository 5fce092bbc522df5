"""Automatic mixed precision: ``accelerate``, ``prepare_optimizer``, ``backward``, ``unscale``.

``accelerate`` chooses for this worker, and for one run of the training function.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.train.torch.nested import map_leaves
from lockstep.train.worker import session as sessions
from lockstep.train.worker.torch_device import get_device

if TYPE_CHECKING:
    import torch

    _Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)

__all__ = [
    "Acceleration",
    "accelerate",
    "acceleration",
    "autocast_forward",
    "backward",
    "get_grad_scaler",
    "prepare_optimizer",
    "share_scaler",
    "unscale",
]

_DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "half": "float16",
}


@dataclass
class Acceleration:
    """The mixed precision of one run."""

    dtype: torch.dtype | None = None
    """The type in which autocast computes; None: no mixed precision."""
    scaler: torch.amp.GradScaler | None = None
    chosen: bool = False
    """Whether ``accelerate`` was called."""
    used_by: str | None = None
    """The first helper that depended on the choice."""
    stepped: bool = False
    """Whether an optimizer has stepped since the scaler was last updated."""


_by_session: weakref.WeakKeyDictionary[sessions.Session, Acceleration] = weakref.WeakKeyDictionary()


def acceleration(user: str | None = None) -> Acceleration:
    """Return the current run's mixed precision; ``user`` names a helper that depends on it."""
    session = sessions.current()
    if session is None:
        return Acceleration()
    state = _by_session.setdefault(session, Acceleration())
    if user is not None and state.used_by is None:
        state.used_by = user
    return state


def accelerate(amp: bool = False, amp_dtype: torch.dtype | str | None = None) -> None:
    """Train with mixed precision. Call it once, before every ``prepare_…`` function.

    Models from ``prepare_model`` then compute in ``amp_dtype`` where that is safe, with weights and
    outputs in float32. It may be slower where the hardware has no support for the type.

    Args:
        amp: whether to use mixed precision.
        amp_dtype: ``torch.float16`` or ``torch.bfloat16`` (or ``"fp16"``, ``"bf16"``). By default
            float16 on a GPU and bfloat16 on a CPU, which supports no other.

    Raises:
        RuntimeError: called a second time, after a ``prepare_…`` function, or outside a training
            function.
        ValueError: this device cannot train in that type.
    """
    if sessions.current() is None:
        raise RuntimeError("accelerate() was called outside a training function; call it in one.")
    state = acceleration()
    if state.chosen:
        raise RuntimeError(
            "accelerate() was called a second time; call it once, at the top of the training "
            "function."
        )
    if state.used_by is not None:
        raise RuntimeError(
            f"accelerate() was called after {state.used_by}(), which depends on it; call it first."
        )
    if amp_dtype is not None and not amp:
        raise ValueError(f"accelerate(amp_dtype={amp_dtype!r}) needs amp=True.")
    device = get_device()
    if amp:
        import torch

        state.dtype = _dtype(amp_dtype, device)
        if state.dtype is torch.float16:
            state.scaler = torch.amp.GradScaler(device.type)
    state.chosen = True


def _dtype(requested: torch.dtype | str | None, device: torch.device) -> torch.dtype:
    import torch

    if requested is None:
        return torch.bfloat16 if device.type == "cpu" else torch.float16
    dtype = getattr(torch, _DTYPES.get(requested, "")) if requested in _DTYPES else requested
    if dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"accelerate(amp_dtype={requested!r}): expected torch.float16 or torch.bfloat16."
        )
    if device.type == "cpu" and dtype is torch.float16:
        raise ValueError(
            f"accelerate(amp_dtype={requested!r}): a CPU trains in torch.bfloat16 only; "
            "leave amp_dtype out or give the worker a GPU."
        )
    return dtype


def share_scaler(device: torch.device) -> None:
    """Make all ranks skip the same steps, although each sees only a shard of the gradients.

    Needed for ``FullyShardedDataParallel`` only: with ``DistributedDataParallel`` all ranks have
    the same gradients, and the tensors of ``fully_shard`` agree by themselves.
    """
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    state = acceleration()
    if state.scaler is not None and not isinstance(state.scaler, ShardedGradScaler):
        before = state.scaler.state_dict()
        state.scaler = ShardedGradScaler(device.type)
        state.scaler.load_state_dict(before)


def prepare_optimizer(optimizer: _Optimizer) -> _Optimizer:
    """Make the optimizer undo the scaling that ``backward`` applies, if any.

    The same object is returned: its state, parameter groups and schedulers are unchanged. A step
    whose gradients overflowed is skipped.

    Raises:
        TypeError: the optimizer has no ``step``.
    """
    if not callable(getattr(optimizer, "step", None)):
        raise TypeError(f"prepare_optimizer({optimizer!r}): expected a torch.optim.Optimizer.")
    scaled = acceleration("prepare_optimizer").scaler is not None
    if scaled and not hasattr(optimizer.step, "_lockstep_unscaled"):
        step = _scaled_step(_Unscaled(optimizer))
        # A bound method, as learning-rate schedulers expect. Replacing ``step`` on the object,
        # instead of wrapping the object, keeps ``isinstance`` and every attribute as they are.
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]  # see above
    return optimizer


def backward(tensor: torch.Tensor) -> None:
    """Call ``loss.backward()``, with a scaled loss where mixed precision needs it.

    With float16, the gradients are scaled until ``optimizer.step()``.

    Raises:
        TypeError: the loss is not a tensor, such as a number from ``item()``.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"backward({tensor!r}): expected the loss as a tensor.")
    state = acceleration("backward")
    if state.scaler is None:
        tensor.backward()  # type: ignore[no-untyped-call]  # torch's own
        return
    if state.stepped:
        # Updated here, not in step(): the step of a second optimizer needs the same scale.
        state.scaler.update()
        state.stepped = False
    state.scaler.scale(tensor).backward()  # type: ignore[no-untyped-call]  # torch's own


def unscale(optimizer: torch.optim.Optimizer) -> None:
    """Undo the scaling of the gradients now, to read or clip them before the step.

    Call it after the last ``backward`` of a step; ``step`` does not repeat it. Without scaling
    (bfloat16, or no mixed precision) it does nothing, so the same code runs everywhere.

    Raises:
        ValueError: the optimizer was not passed through ``prepare_optimizer``.
    """
    scaler = acceleration("unscale").scaler
    if scaler is None:
        return
    unscaled = getattr(optimizer.step, "_lockstep_unscaled", None)
    if unscaled is None:
        raise ValueError(
            f"unscale({type(optimizer).__name__}): its gradients are scaled by backward(), but "
            "nothing unscales them; pass the optimizer through prepare_optimizer() first."
        )
    scaler.unscale_(unscaled)


def get_grad_scaler() -> torch.amp.GradScaler | None:
    """Return the object that scales the loss, or None.

    Save its ``state_dict()`` in a checkpoint if training must resume exactly.
    """
    state = acceleration("get_grad_scaler")
    if state.scaler is not None and state.stepped:
        # backward() updates the scale late, see there: a checkpoint needs the new scale.
        state.scaler.update()
        state.stepped = False
    return state.scaler


class _Unscaled:
    """The optimizer with its original ``step``, for the GradScaler.

    Everything else is the optimizer's own: a fused optimizer unscales gradients itself, with
    attributes that the scaler sets on it.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        vars(self).update(_optimizer=optimizer, step=optimizer.step)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_optimizer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_optimizer"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(vars(self)["_optimizer"], name)


def _scaled_step(unscaled: _Unscaled) -> Callable[..., Any]:
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        state = acceleration()
        assert state.scaler is not None
        state.stepped = True
        # Read at each step: share_scaler() may have replaced the scaler.
        return state.scaler.step(unscaled, *args, **kwargs)  # type: ignore[arg-type]  # has what it uses

    # The copied attributes include the mark that an existing scheduler has put on the step.
    vars(step).update(unscaled.step.__dict__, _lockstep_unscaled=unscaled)
    return step


def autocast_forward(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Make the model's ``forward`` run under autocast, in place.

    The model's class becomes a subclass, but pickling names the original class: a saved model
    loads without lockstep. A model whose ``forward`` is an attribute (a compiled model) keeps its
    class.
    """
    if hasattr(type(model), "_lockstep_plain"):
        return
    if "forward" in vars(model):
        inner = vars(model)["forward"]
        vars(model)["forward"] = lambda *args, **kwargs: _run(inner, device, dtype, args, kwargs)
        return
    model.__class__ = _autocasting(type(model), device, dtype)


def _autocasting(plain: Any, device: torch.device, dtype: torch.dtype) -> type[Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _run(plain.forward, device, dtype, (self, *args), kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        # Protocol 1 has the class among the arguments, where it can be replaced; later protocols
        # use the object's own class.
        function, arguments, *rest = plain.__reduce_ex__(self, 1)
        return (function, tuple(plain if value is made else value for value in arguments), *rest)

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        if hasattr(plain, "__deepcopy__"):
            return plain.__deepcopy__(self, memo)
        function, arguments, state = reduce(self, 1)
        copied = memo[id(self)] = function(*arguments)
        copied.__setstate__(copy.deepcopy(state, memo))
        autocast_forward(copied, device, dtype)
        return copied

    members = {
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "__reduce_ex__": reduce,
        "__deepcopy__": deepcopy,
        "_lockstep_plain": plain,
        "forward": forward,
    }
    made = type(plain.__name__, (plain,), members)
    return made


def _run(
    forward: Callable[..., Any],
    device: torch.device,
    dtype: torch.dtype,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    import torch

    with torch.autocast(device.type, dtype):
        output = forward(*args, **kwargs)
    return map_leaves(output, _to_float32, lambda value: isinstance(value, torch.Tensor))


def _to_float32(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value
