"""Search with Optuna and stop trials that do not learn: 48 networks for the price of a few."""

import numpy as np
from sklearn.datasets import load_digits

from lockstep import tune
from lockstep.tune import TuneConfig, Tuner
from lockstep.tune.schedulers import ASHAScheduler
from lockstep.tune.search import ConcurrencyLimiter
from lockstep.tune.search.optuna import OptunaSearch

EPOCHS = 27


def train_digits(config: dict, images: np.ndarray, labels: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(0, 0.1, (64, config["width"]))
    output = rng.normal(0, 0.1, (config["width"], 10))
    lr = config["lr"]
    beta = config["optimizer"].get("momentum", 0.0)
    steps = [np.zeros_like(hidden), np.zeros_like(output)]
    for _ in range(EPOCHS):
        for batch in np.array_split(rng.permutation(1200), 20):
            active = np.maximum(images[batch] @ hidden, 0)
            scores = np.exp(np.clip(active @ output, -30, 30))
            error = scores / scores.sum(1, keepdims=True) - np.eye(10)[labels[batch]]
            gradients = [images[batch].T @ (error @ output.T * (active > 0)), active.T @ error]
            steps = [beta * s - lr * g / 60 for s, g in zip(steps, gradients, strict=True)]
            hidden, output = hidden + steps[0], output + steps[1]
        found = (np.maximum(images[1200:] @ hidden, 0) @ output).argmax(1)
        tune.report({"accuracy": (found == labels[1200:]).mean()})


if __name__ == "__main__":
    digits = load_digits()
    results = Tuner(
        tune.with_parameters(train_digits, images=digits.data / 16, labels=digits.target),
        param_space={
            "width": tune.lograndint(4, 65),
            "lr": tune.loguniform(1e-4, 1.0),
            # The momentum is drawn only where there is one.
            "optimizer": tune.choice(
                [{"name": "plain"}, {"name": "momentum", "momentum": tune.uniform(0.5, 0.95)}]
            ),
        },
        tune_config=TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=48,
            search_alg=ConcurrencyLimiter(OptunaSearch(seed=1), max_concurrent=4),
            scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3),
        ),
    ).fit()
    epochs = int(results.get_dataframe()["training_iteration"].sum())
    best = results.get_best_result()
    print(f"{len(results)} trials in {epochs / len(results) / EPOCHS:.0%} of their epochs")
    print(f"accuracy: {best.metrics['accuracy']:.3f} with {best.config}")
