"""JAX: the trainer and its config."""

from __future__ import annotations

from lockstep.train.jax.config import JaxConfig
from lockstep.train.jax.trainer import JaxTrainer

__all__ = ["JaxConfig", "JaxTrainer"]
