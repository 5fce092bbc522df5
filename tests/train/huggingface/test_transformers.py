"""A Transformers trainer inside workers, with a tiny model."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep.data
from lockstep import train
from lockstep.testing import verify_resume
from lockstep.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from lockstep.train.huggingface.transformers import prepare_trainer
from lockstep.train.torch import TorchTrainer, accelerate, backward, prepare_model
from tests.train.torch.ranks import forked_with

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="Transformers is not installed"
    ),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module", autouse=True)
def _transformers_in_workers() -> Iterator[None]:
    with forked_with("accelerate", "transformers.trainer", "transformers.models.gpt2"):
        yield


def language_model(directory: str, data: Any = None, **arguments: Any) -> Any:
    """A trainer: two epochs of 16 rows, in batches of four."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    tokens = torch.arange(8)
    rows = [{"input_ids": tokens, "labels": tokens}] * 16
    every = {f"{what}_strategy": "epoch" for what in ("logging", "save", "eval")}
    training, evaluation = data or (rows, rows[:4])
    return Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            os.path.join(directory, "trainer"),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            disable_tqdm=True,
            report_to=[],
            **{**every, **arguments},
        ),
        train_dataset=training,
        eval_dataset=evaluation,
    )


def fails_in_the_second_epoch(step: int = 2) -> Any:
    from transformers import TrainerCallback

    class Fails(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step:
                os._exit(3)

    return Fails()


def test_each_save_is_reported_and_a_failure_resumes_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def function(config: dict[str, Any]) -> None:
        from lockstep.train.huggingface.transformers import (
            LockstepReportCallback,
            RayTrainReportCallback,
        )

        assert RayTrainReportCallback is LockstepReportCallback
        trainer = language_model(config["directory"], save_total_limit=1)
        trainer.add_callback(LockstepReportCallback())
        trainer = train.huggingface.transformers.prepare_trainer(trainer)
        checkpoint = train.get_checkpoint()
        if checkpoint is None:
            if train.get_context().get_world_rank() == 1:
                trainer.add_callback(fails_in_the_second_epoch())
            trainer.train()
        else:
            with checkpoint.as_directory() as directory:
                trainer.train(resume_from_checkpoint=os.path.join(directory, "checkpoint"))
        train.report(
            {
                "world_size": trainer.args.world_size,
                "steps": trainer.state.global_step,
                "wrapped": type(trainer.model_wrapped).__name__,
                "weight": trainer.model.transformer.wte.weight[0, 0].item(),
            }
        )

    result = TorchTrainer(
        function,
        train_loop_config={"directory": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(tmp_path / "runs"), verbose=0, failure_config=FailureConfig(1)
        ),
    ).fit()

    table = result.metrics_dataframe
    assert table is not None
    saves = table.iloc[:-1]
    assert list(saves["step"]) == [2, 4]
    assert list(saves["epoch"]) == [1.0, 2.0]
    assert list(saves["attempt"]) == [1, 2]
    assert saves[["loss", "eval_loss", "learning_rate"]].notna().all(axis=None)
    first, second = result.metrics_by_rank
    assert (first["world_size"], first["steps"]) == (2, 4)
    assert first["wrapped"] == "DistributedDataParallel"
    assert first["weight"] == second["weight"]
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        names = set(os.listdir(os.path.join(directory, "checkpoint")))
    assert {"model.safetensors", "trainer_state.json", "optimizer.pt"} <= names
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= names  # every rank's own
    assert os.listdir(tmp_path / "trainer") == ["checkpoint-4"]


def test_the_batches_of_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's own batches resume in the middle of an epoch: none is skipped or repeated."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def function(config: dict[str, Any]) -> None:
        from lockstep.train.huggingface.transformers import LockstepReportCallback

        shard = train.get_dataset_shard("train")
        batches = train.get_dataset_shard("eval").iter_torch_batches(batch_size=4)
        every: dict[str, Any]
        every = {f"{what}_strategy": "steps" for what in ("logging", "save", "eval")}
        every |= {f"{what}_steps": 3 for what in ("logging", "save", "eval")}
        data = shard.iter_torch_batches(batch_size=4), {"some": batches}
        trainer = prepare_trainer(language_model(config["directory"], data, max_steps=8, **every))
        trainer.add_callback(LockstepReportCallback())
        checkpoint = train.get_checkpoint()
        if checkpoint is None:
            trainer.add_callback(fails_in_the_second_epoch(5))
            trainer.train()
        else:
            with checkpoint.as_directory() as directory:
                trainer.train(resume_from_checkpoint=os.path.join(directory, "checkpoint"))
        train.report(
            {
                "batches": shard.stats().batches,
                "steps": trainer.state.global_step,
                "evaluated": "eval_loss" in trainer.evaluate(batches),
                "trainer": type(trainer).__name__,
            }
        )

    tokens = [{"input_ids": list(range(8)), "labels": list(range(8))}] * 32
    result = TorchTrainer(
        function,
        train_loop_config={"directory": str(tmp_path)},
        datasets={name: lockstep.data.from_items(tokens) for name in ("train", "eval")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(tmp_path / "runs"), verbose=0, failure_config=FailureConfig(1)
        ),
    ).fit()

    saves = result.metrics_dataframe.iloc[:-1]
    assert list(saves["step"]) == [3, 6, 8]
    assert saves["eval_some_loss"].notna()[:2].all()
    # After the failure: the last batch of the first epoch, and the four of the second.
    expected = {"batches": 5, "steps": 8, "evaluated": True, "trainer": "Trainer"}
    assert result.metrics_by_rank == [expected] * 2


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def function(config: dict[str, Any]) -> None:
        import torch.distributed as dist

        from lockstep.train.huggingface.transformers import LockstepReportCallback

        trainer = language_model(config["directory"], fp16=True)
        trainer.add_callback(LockstepReportCallback())
        trainer = prepare_trainer(trainer)
        checkpoint = train.get_checkpoint()
        if checkpoint is None:
            trainer.train()
        else:
            trainer.args.num_train_epochs = 3
            with checkpoint.as_directory() as directory:
                trainer.train(resume_from_checkpoint=os.path.join(directory, "checkpoint"))
        train.report(
            {
                "device": str(next(trainer.model.parameters()).device),
                "group": dist.get_backend(),
                "steps": trainer.state.global_step,
            }
        )

    def run(checkpoint: train.Checkpoint | None) -> train.Result:
        return TorchTrainer(
            function,
            train_loop_config={"directory": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
            run_config=RunConfig(storage_path=str(tmp_path / "runs"), verbose=0),
            resume_from_checkpoint=checkpoint,
        ).fit()

    first = run(None)
    assert first.metrics is not None
    assert [first.metrics[key] for key in ("device", "group", "steps")] == ["cuda:0", "nccl", 8]
    second = run(first.checkpoint)
    assert second.metrics is not None
    assert second.metrics["steps"] == 12
    table = second.metrics_dataframe
    assert table is not None
    assert list(table["step"].dropna()) == [12]  # the third epoch only


def test_mixed_precision_of_a_transformers_model(tmp_path: Path) -> None:
    """The model's outputs are dicts that refuse ``update()``."""

    def function() -> None:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        accelerate(amp=True)
        config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2)
        model = prepare_model(GPT2LMHeadModel(config))
        tokens = torch.arange(8)[None]
        output = model(input_ids=tokens, labels=tokens, output_hidden_states=True)
        backward(output.loss)
        train.report(
            {
                "kind": type(output).__name__,
                "types": [str(output.logits.dtype), str(output["hidden_states"][-1].dtype)],
                "learns": all(weight.grad is not None for weight in model.parameters()),
            }
        )

    result = TorchTrainer(
        function, run_config=RunConfig(storage_path=str(tmp_path), verbose=0)
    ).fit()
    assert result.reported_metrics == {
        "kind": "CausalLMOutputWithCrossAttentions",
        "types": ["torch.float32"] * 2,
        "learns": True,
    }


def test_prepare_trainer_without_a_process_group(tmp_path: Path) -> None:
    class Arguments:
        world_size = 1

    class Trainer:
        args = Arguments()

    def function() -> None:
        prepare_trainer(Trainer())

    with pytest.raises(WorkerGroupError, match=r"sees 1 process\(es\), but this run has 2 workers"):
        train.DataParallelTrainer(
            function,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
        ).fit()


def test_prepare_trainer_needs_a_trainer() -> None:
    with pytest.raises(TypeError, match=r"expected a transformers\.Trainer"):
        prepare_trainer("trainer")


def test_an_unknown_name() -> None:
    assert not hasattr(train.huggingface, "diffusers")
    assert not hasattr(train.huggingface.transformers, "Trainer2")
    assert "LockstepReportCallback" in dir(train.huggingface.transformers)


def test_a_trainer_that_resumes_exactly_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times, and the directories of two runs, are no differences."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def function() -> None:
        import torch

        from lockstep.train.huggingface.transformers import LockstepReportCallback

        torch.manual_seed(0)
        best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
        trainer = language_model(tempfile.mkdtemp(dir=tmp_path), **best)
        trainer.add_callback(LockstepReportCallback())
        checkpoint = train.get_checkpoint()
        if checkpoint is None:
            trainer.train()
        else:
            with checkpoint.as_directory() as directory:
                trainer.train(resume_from_checkpoint=os.path.join(directory, "checkpoint"))

    trainer = TorchTrainer(function, scaling_config=ScalingConfig(num_workers=1))
    report = verify_resume(trainer, fault="raise")
    assert report, report.differences
