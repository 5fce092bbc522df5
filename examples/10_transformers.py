"""Train a tiny GPT-2, made here, with the Transformers trainer on two workers."""

import os
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from lockstep import train
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.huggingface.transformers import LockstepReportCallback, prepare_trainer
from lockstep.train.torch import TorchTrainer


def train_func(config: dict) -> None:
    shape = {"vocab_size": 16, "n_positions": 8, "n_embd": 32, "n_layer": 2, "n_head": 2}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    counting = [(torch.arange(8) + start) % 16 for start in range(16)] * 8
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            config["output_dir"],
            num_train_epochs=4,
            per_device_train_batch_size=8,
            learning_rate=0.01,
            logging_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            disable_tqdm=True,
            report_to=[],
            ddp_find_unused_parameters=False,
            dataloader_pin_memory=False,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in counting],
        callbacks=[LockstepReportCallback()],
    )
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            prepare_trainer(trainer).train(os.path.join(directory, "checkpoint"))
    else:
        prepare_trainer(trainer).train()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as output_dir:
        result = TorchTrainer(
            train_func,
            train_loop_config={"output_dir": output_dir},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="transformers"),
        ).fit()
    print(result.metrics_dataframe[["epoch", "step", "loss"]].to_string(index=False))
    with result.checkpoint.as_directory() as directory:
        model = GPT2LMHeadModel.from_pretrained(os.path.join(directory, "checkpoint"))
    following = model(torch.tensor([[3, 4, 5, 6]])).logits[0, -1].argmax().item()
    print(f"3 4 5 6 {following}")
