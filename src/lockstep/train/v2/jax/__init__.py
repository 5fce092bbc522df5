"""Another place of ``JaxTrainer`` and ``JaxConfig``."""

from __future__ import annotations

from lockstep.train.jax import JaxConfig, JaxTrainer

__all__ = ["JaxConfig", "JaxTrainer"]
