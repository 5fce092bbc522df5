"""TorchMetrics: a metric object counts the samples of all workers, not only rank 0's. Offline."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from lockstep import train
from lockstep.train import ScalingConfig
from lockstep.train.torch import TorchTrainer, get_device, prepare_data_loader, prepare_model


def train_func(config: dict) -> None:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    training = TensorDataset(images[:1500], labels[:1500])
    validation = TensorDataset(images[1500:], labels[1500:])
    loader = prepare_data_loader(DataLoader(training, batch_size=32, shuffle=True))
    check = prepare_data_loader(DataLoader(validation, batch_size=64))
    model = prepare_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    accuracy = MulticlassAccuracy(10, average="micro").to(get_device())

    for _ in range(config["epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        right = rows = 0
        with torch.no_grad():
            for x, y in check:
                output = model(x)
                accuracy.update(output, y)
                right += (output.argmax(1) == y).sum().item()
                rows += len(y)
        # compute() combines the counts of all workers: every rank gets the same number.
        train.report({"accuracy": accuracy.compute().item(), "accuracy_here": right / rows})
        accuracy.reset()


if __name__ == "__main__":
    result = TorchTrainer(
        train_func,
        train_loop_config={"epochs": 6},
        scaling_config=ScalingConfig(num_workers=2),
    ).fit()
    for rank, metrics in enumerate(result.metrics_by_rank):
        print(f"rank {rank} saw {metrics['accuracy_here']:.4f} of all {metrics['accuracy']:.4f}")
    own = [metrics["accuracy_here"] for metrics in result.metrics_by_rank]
    same = abs(sum(own) / 2 - result.metrics["accuracy"]) < 1e-6
    print(f"the mean of both is what each reports: {same}")
