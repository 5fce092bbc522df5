"""Population based training: weak trials continue from strong ones, with a changed config."""

import json

from lockstep import tune
from lockstep.train import Checkpoint, CheckpointConfig, RunConfig
from lockstep.tune import TuneConfig, Tuner
from lockstep.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay

STEPS = 40


def train_two(config: dict) -> None:
    """Two weights; the config says how to divide the effort between them."""
    first, second, start = 0.9, 0.9, 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:  # its own after a pause, or that of a better trial
        state = checkpoint.to_dict()
        first, second, start = state["first"], state["second"], state["step"]
    for step in range(start + 1, STEPS + 1):
        first -= 0.1 * config["share"] * first
        second -= 0.1 * (1 - config["share"]) * second
        state = Checkpoint.from_dict({"first": first, "second": second, "step": step})
        tune.report({"score": 1.2 - first**2 - second**2}, checkpoint=state)


if __name__ == "__main__":
    # By themselves these trials train one of the weights, and leave the other as it is.
    param_space = {"share": tune.grid_search([0.0, 0.0, 1.0, 1.0])}
    alone = Tuner(
        train_two, param_space=param_space, tune_config=TuneConfig(metric="score", mode="max")
    ).fit()
    print(f"alone:      {alone.get_best_result().metrics['score']:.2f}")

    population = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=4,
        hyperparam_mutations={"share": tune.uniform(0, 1)},
        quantile_fraction=0.5,
        resample_probability=1.0,
        seed=1,
    )
    results = Tuner(
        train_two,
        param_space=param_space,
        tune_config=TuneConfig(metric="score", mode="max", scheduler=population),
        run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=4)),
    ).fit()
    best = results.get_best_result()
    print(f"population: {best.metrics['score']:.2f}")

    policy = f"{results.experiment_path}/pbt_policy_{best.metrics['trial_id']}.txt"
    with open(policy) as file:
        for _, _, _, step, _, config in map(json.loads, file):
            print(f"            from step {step}: {config}")
    replay = PopulationBasedTrainingReplay(policy)
    again = Tuner(
        train_two, tune_config=TuneConfig(metric="score", mode="max", scheduler=replay)
    ).fit()
    print(f"replayed:   {again[0].metrics['score']:.2f}, with one trial")
