"""HorovodTrainer: unchanged functions that were written for Horovod, and its arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import TrainingFailedError
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.backend import Place, Wiring
from lockstep.train.context import TrainContext
from lockstep.train.horovod import HorovodConfig, HorovodTrainer
from lockstep.train.horovod.backend import HorovodBackend
from tests.integration.runs import run_script

# The first worker of a session waits until torch and Horovod are imported, which takes a while on a
# busy machine.
pytestmark = [pytest.mark.environment("horovod"), pytest.mark.timeout(180)]


def fit(function: Callable[..., Any], workers: int = 2, **options: Any) -> train.Result:
    return HorovodTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0),
        **options,
    ).fit()


def horovod_as_it_is() -> None:
    """A plain Horovod function; only the report at the end is lockstep's."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for _ in range(3):
        wrapped.zero_grad()
        inputs = torch.randn(8, 4)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()  # type: ignore[no-untyped-call]
        wrapped.step()
    everyone = hvd.allgather(torch.tensor([hvd.rank()])).tolist()
    received = hvd.broadcast_object({"from": hvd.rank()}, root_rank=1)
    hvd.barrier()
    # A second group after the first, from the same rendezvous server.
    hvd.shutdown()
    hvd.init()
    again = hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item()
    train.report(
        {
            "weights": model.weight.tolist(),
            "everyone": everyone,
            "received": received,
            "again": again,
            "local": [hvd.local_rank(), hvd.local_size()],
            "cross": [hvd.cross_rank(), hvd.cross_size()],
        }
    )


def test_a_function_written_for_horovod() -> None:
    rows = fit(horovod_as_it_is, workers=3).metrics_by_rank
    assert rows[0]["weights"] == rows[1]["weights"] == rows[2]["weights"]
    for rank, row in enumerate(rows):
        assert row["everyone"] == [0, 1, 2]
        assert row["received"] == {"from": 1}
        assert row["again"] == 3.0
        assert row["local"] == [rank, 3]
        assert row["cross"] == [0, 1]


def test_the_rendezvous_forgets_a_group_whose_ranks_are_not_equally_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a second ``hvd.init()`` would sometimes find the addresses of the first."""
    backend = HorovodBackend((), (), "warning", 300)
    first = backend.announce(0, "127.0.0.1")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    context = TrainContext(world_rank=0, world_size=2)
    backend.setup(Wiring(context, (first, Place("127.0.0.1", None)), "127.0.0.1", use_gpu=False))

    def ask(method: str, scope: str, rank: int) -> int:
        connection = HTTPConnection("127.0.0.1", first.port, timeout=120)
        connection.request(method, f"/{scope}/{rank}", body="address")
        status = connection.getresponse().status
        connection.close()
        return status

    scopes = ("global", "local_127.0.0.1")
    try:
        for _ in range(2):
            for scope in scopes:
                assert [ask("PUT", scope, rank) for rank in (0, 1)] == [200, 200]
            # Rank 0 finishes both scopes before rank 1 finishes the first.
            for rank in (0, 1):
                assert ask("GET", "global", rank) == 200
                for scope in scopes:
                    assert ask("DELETE", scope, rank) == 200
            assert [ask("GET", scope, 1) for scope in scopes] == [404, 404]
    finally:
        backend.teardown()


def elsewhere(config: dict[str, Any]) -> None:
    import horovod.torch as hvd

    hvd.init()
    names = [name for name in os.environ if name.startswith(("HOROVOD_", "CUDA_VISIBLE"))]
    train.report({name: os.environ[name] for name in names})


def test_the_config_reaches_horovod() -> None:
    config = HorovodConfig(nics={"lo"}, verbose=0, timeout_s=77.5)
    seen = fit(elsewhere, horovod_config=config).reported_metrics
    assert seen["HOROVOD_GLOO_IFACE"] == "lo"
    assert seen["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "78"
    assert seen["HOROVOD_LOG_LEVEL"] == "error"
    assert seen["HOROVOD_CONTROLLER"] == seen["HOROVOD_CPU_OPERATIONS"] == "gloo"
    assert seen["CUDA_VISIBLE_DEVICES"] == "", "no GPU was requested"


def test_an_interface_that_is_not_there() -> None:
    with pytest.raises(TrainingFailedError, match=r"nics=\['none0'\]\): this machine has none of"):
        fit(elsewhere, horovod_config=HorovodConfig(nics=["none0"]))


def test_in_this_process(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import threading
        from lockstep import train
        from lockstep.train import RunConfig, ScalingConfig
        from lockstep.train.horovod import HorovodTrainer

        def function():
            import horovod.torch as hvd, torch
            hvd.init()
            train.report({"sum": hvd.allreduce(torch.tensor(4.0), op=hvd.Sum).item()})

        for _ in range(2):
            result = HorovodTrainer(
                function,
                scaling_config=ScalingConfig(num_workers=0),
                run_config=RunConfig(verbose=0),
            ).fit()
            print(result.metrics["sum"], threading.active_count())
        import horovod.torch as hvd
        print(hvd.is_initialized())
        """,
        timeout_s=150,
    )
    assert done.stdout.split() == ["4.0", "1", "4.0", "1", "False"]


def test_the_config_has_three_names() -> None:
    config = HorovodConfig()
    names = ("horovod_config", "horovod_backend", "tensorflow_backend")
    for name in names:
        given: dict[str, Any] = {name: config}
        assert HorovodTrainer(elsewhere, **given).backend_config is config
    with pytest.raises(ValueError, match="horovod_config and tensorflow_backend are names of one"):
        HorovodTrainer(elsewhere, horovod_config=config, tensorflow_backend=config)
    with pytest.raises(TypeError, match="horovod_backend='x': expected a HorovodConfig"):
        HorovodTrainer(elsewhere, horovod_backend="x")  # type: ignore[arg-type]


def test_horovods_binding_is_imported_ahead() -> None:
    backend = HorovodConfig().make_backend()
    assert isinstance(backend, HorovodBackend)
    assert "horovod.torch" in backend.preload
