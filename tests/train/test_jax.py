"""JAX on several workers: one global mesh of all processes' devices."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from lockstep import data, train
from lockstep.train import RunConfig, ScalingConfig


def function(config: dict[str, Any]) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    rank = train.get_context().get_world_rank()
    batches = list(train.get_dataset_shard("train").iter_jax_batches(batch_size=4))
    total = sum(float(batch["id"].sum()) for batch in batches)
    everyone = multihost_utils.process_allgather(jnp.asarray(total))
    train.report({"sum": float(np.sum(everyone)), "processes": jax.process_count()})
    return {"rank": rank, "index": jax.process_index(), "platform": jax.default_backend()}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_workers_compute_together(workers: int) -> None:
    if importlib.util.find_spec("jax") is None:  # importing JAX changes the environment
        pytest.skip("JAX is not installed")
    from lockstep.train.v2.jax import JaxTrainer

    result = JaxTrainer(
        function,
        datasets={"train": data.range(16)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert result.metrics["sum"] == sum(range(16))
    assert result.metrics["processes"] == workers
    assert result.return_value == {"rank": 0, "index": 0, "platform": "cpu"}


def test_jax_that_is_not_installed() -> None:
    code = (
        "import sys, importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'jax' else find(name, *a)\n"
        "from lockstep.train.jax import JaxTrainer\n"
        "try: JaxTrainer(print)\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'lockstep-train[jax]'" in done.stdout, done.stderr
