"""What does a trial cost, of a function or a trainer, of few or of thousands; what saves ASHA?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import common
from common import Against, Bench, Measurement, Reach

FILE = "tune.py"
CONFIGS = 64
EPOCHS = 27


# Programs.


def trivial(config: dict[str, Any]) -> None:
    from lockstep import tune

    tune.report({"loss": (config["x"] - 0.5) ** 2})


def nothing(config: dict[str, Any]) -> None:
    """A training function that does nothing: what is left is the cost of a run."""


def classify(config: dict[str, Any]) -> None:
    """A small network on the 1,797 digits that ship with scikit-learn; a report an epoch."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    from lockstep import tune

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images))
    images, labels = images[order], labels[order]
    layers = [nn.Linear(64, config["width"]), nn.ReLU(), nn.Dropout(config["dropout"])]
    model = nn.Sequential(*layers, nn.Linear(config["width"], 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    for _ in range(EPOCHS):
        model.train()
        for batch in torch.randperm(1347).split(64):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(images[1347:]).argmax(1) == labels[1347:]).float().mean().item()
        tune.report({"accuracy": right})


def play_lockstep(config: dict[str, Any]) -> None:
    """Rounds of trivial trials, two at a time; the first one warms up and does not count."""
    from lockstep import tune
    from lockstep.train import RunConfig

    for number, count in enumerate([8, *config["counts"]]):
        start = time.perf_counter()
        tuner = tune.Tuner(
            trivial,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(
                metric="loss", mode="min", num_samples=count, max_concurrent_trials=2
            ),
            run_config=RunConfig(storage_path=config["work"] + "/runs", verbose=0),
        )
        assert tuner.fit().num_terminated == count
        if number:
            common.emit(config["out"], count=count, seconds=time.perf_counter() - start)


def play_lockstep_trainer(config: dict[str, Any]) -> None:
    from lockstep import tune
    from lockstep.train import RunConfig, ScalingConfig
    from lockstep.train.torch import TorchTrainer

    trainer = TorchTrainer(nothing, scaling_config=ScalingConfig(num_workers=common.WORKERS))
    for number, count in enumerate([1, *config["counts"]]):
        start = time.perf_counter()
        tuner = tune.Tuner(
            trainer,
            param_space={"train_loop_config": {"x": tune.uniform(0, 1)}},
            tune_config=tune.TuneConfig(num_samples=count),
            run_config=RunConfig(storage_path=config["work"] + "/runs", verbose=0),
        )
        assert tuner.fit().num_terminated == count
        if number:
            common.emit(config["out"], count=count, seconds=time.perf_counter() - start)


def play_search(config: dict[str, Any]) -> None:
    """The same 64 configurations with and without ASHA."""
    import sklearn.datasets  # noqa: F401
    import torch.nn  # noqa: F401

    from lockstep import tune
    from lockstep.train import RunConfig
    from lockstep.tune.schedulers import ASHAScheduler
    from lockstep.tune.search import BasicVariantGenerator

    asha = ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3)
    start = time.perf_counter()
    grid = tune.Tuner(
        classify,
        param_space={
            "lr": tune.loguniform(1e-4, 1.0),
            "width": tune.choice([16, 32, 64, 128]),
            "dropout": tune.uniform(0.0, 0.6),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=CONFIGS,
            scheduler=asha if config["asha"] else None,
            search_alg=BasicVariantGenerator(random_state=config["seed"]),
        ),
        run_config=RunConfig(storage_path=config["work"] + "/runs", verbose=0),
    ).fit()
    assert grid.num_errors == 0
    common.emit(
        config["out"],
        seconds=time.perf_counter() - start,
        epochs=sum(result.metrics["training_iteration"] for result in grid),
        accuracy=grid.get_best_result(scope="all").metrics_dataframe["accuracy"].max(),
    )


def _ray_init(config: dict[str, Any], cpus: int) -> None:
    import ray

    ray.init(
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        num_cpus=cpus,
        _temp_dir=config["work"] + "/ray",
    )


def play_ray(config: dict[str, Any]) -> None:
    from ray import tune

    def trial(config: dict[str, Any]) -> None:
        tune.report({"loss": (config["x"] - 0.5) ** 2})

    _ray_init(config, 2)
    for number, count in enumerate([2, *config["counts"]]):
        start = time.perf_counter()
        tune.Tuner(
            trial,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(
                metric="loss", mode="min", num_samples=count, max_concurrent_trials=2
            ),
            run_config=tune.RunConfig(storage_path=config["work"] + "/runs", verbose=0),
        ).fit()
        if number:
            common.emit(config["out"], count=count, seconds=time.perf_counter() - start)


def play_ray_trainer(config: dict[str, Any]) -> None:
    """As its documentation has it for Train V2: a trainer inside of each trial."""
    from ray import tune
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    where = config["work"] + "/runs"

    def trial(config: dict[str, Any]) -> None:
        TorchTrainer(
            nothing,
            scaling_config=ScalingConfig(num_workers=common.WORKERS),
            run_config=RunConfig(storage_path=where),
        ).fit()

    _ray_init(config, common.WORKERS + 2)
    for number, count in enumerate([1, *config["counts"]]):
        start = time.perf_counter()
        tune.Tuner(
            trial,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=count, max_concurrent_trials=1),
            run_config=tune.RunConfig(storage_path=where, verbose=0),
        ).fit()
        if number:
            common.emit(config["out"], count=count, seconds=time.perf_counter() - start)


def play_optuna(config: dict[str, Any]) -> None:
    """In this process, one after the other, without isolation, directories or journals."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for number, count in enumerate([8, *config["counts"]]):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
        start = time.perf_counter()
        study.optimize(lambda t: (t.suggest_float("x", 0, 1) - 0.5) ** 2, n_trials=count)
        if number:
            common.emit(config["out"], count=count, seconds=time.perf_counter() - start)


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """Trivial trials, few and many; trials of a trainer; what ASHA saves."""
    rounds = bench.times(5, 2)
    bench.say("trivial function trials, two at a time")
    many = Measurement(
        "trivial function trials, two at a time",
        "/s",
        _rates(bench, "lockstep", [200] * rounds),
        Reach(60, "60 a second"),
        [
            bench.peer(
                "Ray Tune",
                lambda: _rates(bench, "ray", [16] * bench.times(3, 1)),
                Reach(50, "50 times"),
            ),
            bench.peer(
                "Optuna, in process, no isolation",
                lambda: _rates(bench, "optuna", [1000] * rounds),
            ),
        ],
    )
    bench.say("2,000 trials against 200, in turn")
    few, all_of_them = [], []
    for _ in range(bench.times(3, 1)):
        costs = _costs(bench, "lockstep", [200, bench.times(2000, 600), 200])
        few += [costs[0], costs[2]]
        all_of_them.append(costs[1])
    against = Against("lockstep, one of 200", few, Reach(1 / 1.2, "within 20 %"))
    scale = Measurement("one of 2,000 trivial trials", "s", all_of_them, None, [against])
    bench.say("a Tuner over a two-worker TorchTrainer that does nothing")
    trainers = Measurement(
        "Tuner over a two-worker TorchTrainer, no-op: a trial",
        "s",
        _costs(bench, "lockstep_trainer", [5] * rounds),
        Reach(0.4, "0.4 s"),
        [
            bench.peer(
                "Ray Tune and Train",
                lambda: _costs(bench, "ray_trainer", [2] * bench.times(2, 1)),
                Reach(30, "30 times"),
            )
        ],
    )
    return [many, scale, trainers, *_asha(bench)]


def _asha(bench: Bench) -> list[Measurement]:
    bench.say(f"ASHA against FIFO: {CONFIGS} digit classifiers")
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for seed in range(bench.times(3, 1)):
        for asha in (True, False):
            found[asha] += bench.run(FILE, "search", asha=asha, seed=seed)[2]

    def row(what: str, unit: str, reach: Reach, value: Callable[[Any], float]) -> Measurement:
        ours, theirs = ([value(record) for record in found[asha]] for asha in (True, False))
        return Measurement(what, unit, ours, None, [Against("FIFO", theirs, reach)])

    wrong = "… wrong images of the best, of 1,000"
    return [
        row(
            f"ASHA, {CONFIGS} digit classifiers: epochs",
            "epochs",
            Reach(3, "a third"),
            lambda record: record["epochs"],
        ),
        row("… time", "s", Reach(1, "less"), lambda record: record["seconds"]),
        row(
            wrong,
            "images",
            Reach(0.8, "within noise"),
            lambda record: 1000 * (1 - record["accuracy"]) + 1,
        ),
    ]


def _records(bench: Bench, role: str, counts: list[int]) -> list[dict[str, Any]]:
    launcher = "ray" if role.startswith("ray") else "python"
    return bench.run(FILE, role, launcher=launcher, counts=counts)[2]


def _rates(bench: Bench, role: str, counts: list[int]) -> list[float]:
    return [record["count"] / record["seconds"] for record in _records(bench, role, counts)]


def _costs(bench: Bench, role: str, counts: list[int]) -> list[float]:
    return [record["seconds"] / record["count"] for record in _records(bench, role, counts)]


if __name__ == "__main__":
    common.play(
        {
            "lockstep": play_lockstep,
            "lockstep_trainer": play_lockstep_trainer,
            "search": play_search,
            "ray": play_ray,
            "ray_trainer": play_ray_trainer,
            "optuna": play_optuna,
        }
    )
