"""Mixed precision: bfloat16 on a CPU, float16 with scaled gradients on a GPU. Offline."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lockstep import train
from lockstep.train import ScalingConfig
from lockstep.train.torch import (
    TorchCheckpoint,
    TorchTrainer,
    accelerate,
    backward,
    enable_reproducibility,
    prepare_data_loader,
    prepare_model,
    prepare_optimizer,
    unwrap_model,
)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        self.computed_in = y.dtype
        return y


def train_func(config: dict) -> None:
    accelerate(amp=True)  # before everything that is prepared
    enable_reproducibility()
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    data = TensorDataset(images, torch.tensor(digits.target))
    loader = prepare_data_loader(DataLoader(data, batch_size=32, shuffle=True))
    model = prepare_model(Classifier())
    optimizer = prepare_optimizer(torch.optim.Adam(model.parameters(), lr=config["lr"]))

    for _ in range(config["epochs"]):
        right = 0
        for x, y in loader:
            output = model(x)
            optimizer.zero_grad()
            backward(nn.functional.cross_entropy(output, y))  # instead of loss.backward()
            optimizer.step()
            right += (output.argmax(1) == y).sum().item()
        train.report(
            {
                "accuracy": right / len(loader.sampler),
                "computed_in": str(unwrap_model(model).computed_in),
                "answered_in": str(output.dtype),
            },
            checkpoint=TorchCheckpoint.from_model(model),
            reduce={"accuracy": "mean"},
        )


if __name__ == "__main__":
    use_gpu = torch.cuda.device_count() >= 2
    result = TorchTrainer(
        train_func,
        train_loop_config={"lr": 0.005, "epochs": 6},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=use_gpu),
    ).fit()
    print(f"accuracy:    {result.metrics['accuracy']:.3f}")
    print(f"computed in: {result.metrics['computed_in']}")
    print(f"answered in: {result.metrics['answered_in']}")
    model = result.checkpoint.get_model()
    print(f"loaded:      {type(model).__name__}, {model.layers[0].weight.dtype}")
