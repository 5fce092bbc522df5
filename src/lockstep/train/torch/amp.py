"""Automatic mixed precision: ``accelerate``, ``prepare_optimizer``, ``backward``, ``unscale``.

What ``accelerate`` chose holds for one run of the training function, in this worker.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.train.torch.device import get_device
from lockstep.train.torch.nested import map_leaves
from lockstep.train.worker import session as sessions

if TYPE_CHECKING:
    import torch

    _Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)

__all__ = [
    "Acceleration",
    "accelerate",
    "acceleration",
    "backward",
    "get_grad_scaler",
    "prepare_optimizer",
    "share_scaler",
    "unscale",
    "wrap",
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
    """What autocast computes in; None: no mixed precision."""
    scaler: torch.amp.GradScaler | None = None
    chosen: bool = False
    """Whether ``accelerate`` was called."""
    used_by: str | None = None
    """The first helper that relied on it."""
    stepped: bool = False
    """Whether an optimizer has stepped since the scaler was last updated."""


_by_session: weakref.WeakKeyDictionary[sessions.Session, Acceleration] = weakref.WeakKeyDictionary()


def acceleration(user: str | None = None) -> Acceleration:
    """What holds for the current run; ``user`` names the helper that goes by it from now on."""
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
            float16 on a GPU, bfloat16 on a CPU, which is the only one there.

    Raises:
        RuntimeError: called a second time, after a ``prepare_…`` function, or outside a training
            function.
        ValueError: this device does not train in that type.
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
            f"accelerate() was called after {state.used_by}(), which goes by it; call it first."
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


def _dtype(wanted: torch.dtype | str | None, device: torch.device) -> torch.dtype:
    import torch

    if wanted is None:
        return torch.bfloat16 if device.type == "cpu" else torch.float16
    dtype = getattr(torch, _DTYPES.get(wanted, "")) if wanted in _DTYPES else wanted
    if dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"accelerate(amp_dtype={wanted!r}): expected torch.float16 or torch.bfloat16."
        )
    if device.type == "cpu" and dtype is torch.float16:
        raise ValueError(
            f"accelerate(amp_dtype={wanted!r}): a CPU trains in torch.bfloat16 only; "
            "leave amp_dtype out or give the worker a GPU."
        )
    return dtype


def share_scaler(device: torch.device) -> None:
    """Let the ranks skip a step together, where each has but a shard of the gradients to look at.

    ``DistributedDataParallel`` gives all of them the same, and the tensors of ``fully_shard`` see
    to it by themselves.
    """
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    state = acceleration()
    if state.scaler is not None and not isinstance(state.scaler, ShardedGradScaler):
        before = state.scaler.state_dict()
        state.scaler = ShardedGradScaler(device.type)
        state.scaler.load_state_dict(before)


def prepare_optimizer(optimizer: _Optimizer) -> _Optimizer:
    """Make the optimizer undo the scaling that ``backward`` applies, where there is one.

    It is the same object: its state, parameter groups and schedulers are untouched. A step whose
    gradients overflowed is skipped.

    Raises:
        TypeError: it has no ``step``.
    """
    if not callable(getattr(optimizer, "step", None)):
        raise TypeError(f"prepare_optimizer({optimizer!r}): expected a torch.optim.Optimizer.")
    scaled = acceleration("prepare_optimizer").scaler is not None
    if scaled and not hasattr(optimizer.step, "_lockstep_unscaled"):
        step = _scaled_step(_Unscaled(optimizer))
        # A bound method, as learning-rate schedulers expect.
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    return optimizer


def backward(loss: torch.Tensor) -> None:
    """``loss.backward()``, scaled where mixed precision needs that.

    With float16, gradients are scaled between this and ``optimizer.step()``.

    Raises:
        TypeError: the loss is something else than a tensor, such as what ``item()`` returns.
    """
    import torch

    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"backward({loss!r}): expected the loss as a tensor.")
    state = acceleration("backward")
    if state.scaler is None:
        loss.backward()  # type: ignore[no-untyped-call]
        return
    if state.stepped:
        # Not in step(): a second optimizer's step belongs to the same scale.
        state.scaler.update()
        state.stepped = False
    state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]


def unscale(optimizer: torch.optim.Optimizer) -> None:
    """Undo the scaling of the gradients now, to look at them or clip them before the step.

    Call it after the last ``backward`` of a step; ``step`` does not do it again. Without scaling
    (bfloat16, or no mixed precision) it does nothing, so that the same code runs everywhere.

    Raises:
        ValueError: the optimizer did not come from ``prepare_optimizer``.
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
    """What scales the loss, None where nothing does: its ``state_dict()`` belongs in a checkpoint
    that is to go on exactly as before."""
    state = acceleration("get_grad_scaler")
    if state.scaler is not None and state.stepped:
        # A scale that is due for a change would be saved as it was.
        state.scaler.update()
        state.stepped = False
    return state.scaler


class _Unscaled:
    """The optimizer as a GradScaler sees it: with the step it had before.

    All else is the optimizer's own: a fused one unscales by itself, by what the scaler sets on it.
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
        # The one of now: a model that is sharded later brings another.
        return state.scaler.step(unscaled, *args, **kwargs)  # type: ignore[arg-type]

    # Among its attributes is the mark by which a scheduler made earlier knows its optimizer.
    vars(step).update(unscaled.step.__dict__, _lockstep_unscaled=unscaled)
    return step


def wrap(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Make the model's ``forward`` compute under autocast, in place.

    The model gets a subclass of its class, which it sheds when it is pickled: what is saved loads
    without lockstep. A model whose ``forward`` is an attribute, a compiled one, keeps its class.
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
        # Protocol 1 names the class as an argument; later ones insist on the object's own.
        function, arguments, *rest = plain.__reduce_ex__(self, 1)
        return (function, tuple(plain if value is made else value for value in arguments), *rest)

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        if hasattr(plain, "__deepcopy__"):
            return plain.__deepcopy__(self, memo)
        function, arguments, state = reduce(self, 1)
        copied = memo[id(self)] = function(*arguments)
        copied.__setstate__(copy.deepcopy(state, memo))
        wrap(copied, device, dtype)
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
