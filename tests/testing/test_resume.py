"""verify_resume passes a function that resumes, and explains what other functions forget."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.testing import FaultPlan, ResumeReport, verify_resume
from lockstep.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
)

EPOCHS = 6


def descend(config: dict[str, Any]) -> None:
    """Gradient descent with momentum. The config lists what to load, and other mistakes."""
    loads = config.get("loads", ("weight", "momentum", "epoch"))
    weight, momentum, start = 0.0, 0.0, 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        weight = state["weight"] if "weight" in loads else weight
        momentum = state["momentum"] if "momentum" in loads else momentum
        start = state["epoch"] + config.get("next", 1) if "epoch" in loads else start
    for epoch in range(start, EPOCHS):
        loss = (weight - 3 - epoch / 10) ** 2
        momentum = 0.9 * momentum + 0.1 * (weight - 3 - epoch / 10)
        weight -= momentum
        metrics = {"epoch": epoch, "loss": loss, "epoch_time": time.perf_counter()}
        if "hide" in config:
            del metrics[config["hide"]]
        state = {"weight": weight, "momentum": momentum, "epoch": epoch}
        every = config.get("every", 1)
        saved = Checkpoint.from_dict(state) if epoch % every == every - 1 else None
        train.report(metrics, checkpoint=saved)


def trainer(
    function: Callable[..., None] = descend,
    *,
    workers: int = 1,
    run_config: RunConfig | None = None,
    **config: Any,
) -> DataParallelTrainer:
    return DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=run_config,
    )


def found(report: ResumeReport, what: str) -> list[int | None]:
    return [difference.iteration for difference in report.differences if difference.what == what]


# ------------------------------------------------------------------------------ the right function


@pytest.mark.parametrize("fault", ["kill", "exit", "raise"])
def test_a_right_function_passes(fault: Any) -> None:
    report = verify_resume(trainer(workers=2), fault=fault)
    assert report.ok
    assert report
    assert report.differences == ()
    assert str(report).startswith("Survives: rank 1 ")
    assert "report 4, the run resumed after training_iteration 3, and all 6 rows" in str(report)
    assert report.undisturbed.metrics_dataframe["attempt"].tolist() == [1] * 6
    assert report.disturbed.metrics_dataframe["attempt"].tolist() == [1, 1, 1, 2, 2, 2]


def test_rows_done_again_since_the_checkpoint_are_compared_not_counted_twice() -> None:
    report = verify_resume(trainer(every=3), at_report=6)
    assert report.ok, str(report)
    assert report.disturbed.metrics_dataframe["training_iteration"].tolist() == [
        *(1, 2, 3, 4, 5),
        *(4, 5, 6),
    ]


def test_the_fault_comes_after_the_first_checkpoint() -> None:
    report = verify_resume(trainer(every=5), rank=0)
    assert repr(report.fault_plan) == "FaultPlan().kill(rank=0, at_report=6)"
    assert report.ok, str(report)


def test_in_process_too() -> None:
    assert verify_resume(trainer(workers=0), fault="raise").ok


def test_checkpoints_without_a_report() -> None:
    def saves_apart() -> None:
        checkpoint = train.load_checkpoint()
        start = checkpoint["epoch"] + 1 if checkpoint else 0
        for epoch in range(start, 4):
            train.report({"loss": 1 / (epoch + 1)})
            train.save_checkpoint(epoch=epoch)

    report = verify_resume(trainer(saves_apart))
    assert report.ok, str(report)
    assert report.disturbed.metrics_dataframe["training_iteration"].tolist() == [1, 2, 3, 4]


def test_a_training_iteration_of_ones_own_does_not_confuse_the_count() -> None:
    def reports_its_own() -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
        for epoch in range(start, 4):
            metrics = {"training_iteration": 10 * epoch}
            train.report(metrics, checkpoint=Checkpoint.from_dict({"epoch": epoch}))

    report = verify_resume(trainer(reports_its_own))
    assert report.ok, str(report)
    assert report.disturbed.metrics_dataframe["attempt"].tolist() == [1, 1, 2, 2]


def test_nan_equals_nan_and_times_are_not_compared() -> None:
    def odd_values() -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
        for epoch in range(start, 4):
            now = time.perf_counter()
            metrics = {
                "loss": math.nan,
                "bound": math.inf,
                "name": f"epoch {epoch}",
                "list": [epoch, None, {"deep": math.nan}],
                "eval": {"seconds": now, "accuracy": 0.5},
                "tokens_per_second": now,
                "it/s": now,
                "stepTime": now,
                "pid": os.getpid(),
            }
            state = {"epoch": epoch, "elapsed": now, "pids": {"pid": os.getpid()}}
            train.report(metrics, checkpoint=Checkpoint.from_dict(state))

    report = verify_resume(trainer(odd_values), ignore=["pid"])
    assert report.ok, str(report)
    report = verify_resume(trainer(odd_values))
    assert not report.ok
    assert {difference.what for difference in report.differences} == {"pid", "pids/pid"}


# -------------------------------------------------------------------------------- the usual errors


def test_it_forgets_to_load() -> None:
    report = verify_resume(trainer(loads=()))
    assert not report.ok
    assert not report
    first = report.differences[0]
    assert (first.what, first.iteration, first.expected, first.got) == ("epoch", 4, 3, 0)
    assert str(report).startswith(
        "The first row after the restart, training_iteration 4, has epoch 0 instead of 3"
    )
    assert str(report).endswith("the function does not load its checkpoint.")
    assert str(report) in repr(report)
    (count,) = [d for d in report.differences if d.what == "the number of reports"]
    assert (count.expected, count.got) == (6, 9)


@pytest.mark.parametrize(
    ("config", "texts"),
    [
        (
            {"loads": ("weight", "momentum")},
            ["4, has epoch 0 instead of 3", "loads its checkpoint but not the epoch"],
        ),
        (
            {"loads": ("weight", "momentum"), "hide": "epoch"},
            ["has loss", "all 6 reports are repeated", "does not load how far it had come"],
        ),
        (
            {"loads": ("epoch", "momentum")},
            ["4, has loss", "although it agrees on epoch", "probably not the model"],
        ),
        (
            {"loads": ("epoch", "weight")},
            ["loss is", "at training_iteration 5", "agrees on epoch, loss:", "the optimizer"],
        ),
        ({"loads": (), "hide": "epoch"}, ["has loss", "does not load its checkpoint"]),
        ({"next": 0}, ["4, has epoch 2 instead of 3", "repeats its checkpoint's epoch"]),
        ({"next": 2}, ["4, has epoch 4 instead of 3", "skips 1 report(s)"]),
    ],
    ids=str,
)
def test_it_loads_a_part(config: dict[str, Any], texts: list[str]) -> None:
    report = verify_resume(trainer(**config))
    assert not report.ok
    for text in texts:
        assert text in str(report)
    assert str(report).count(".") - str(report).count("0.") <= 3  # one sentence, and numbers


def test_a_part_of_another_rank() -> None:
    def counts_for_itself() -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
        seen = start if train.get_context().get_world_rank() == 0 else 0
        for epoch in range(start, 4):
            seen += 1
            train.report({"seen": seen}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))

    report = verify_resume(trainer(counts_for_itself, workers=2), rank=0)
    assert found(report, "seen") == []
    assert found(report, "seen on rank 1") == [3, 4]
    assert "training_iteration 3, has seen on rank 1 1 instead of 3" in str(report)


def test_reduced_metrics_are_compared_and_each_ranks_too() -> None:
    def reduces() -> None:
        rank = train.get_context().get_world_rank()
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
        for epoch in range(start, 4):
            value = epoch + rank + (1.0 if checkpoint else 0.0) * (1 - 2 * rank)
            saved = Checkpoint.from_dict({"epoch": epoch})
            train.report({"value": float(value)}, checkpoint=saved, reduce="mean")

    report = verify_resume(trainer(reduces, workers=2))
    assert found(report, "value") == []
    assert found(report, "value on rank 0") == [3, 4]
    assert found(report, "value on rank 1") == [3, 4]


def test_it_cannot_read_its_own_checkpoint() -> None:
    def misspells() -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["epohc"] + 1 if checkpoint else 0
        for epoch in range(start, 4):
            train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))

    report = verify_resume(trainer(misspells))
    assert not report.ok
    assert "failed before its first report with KeyError: 'epohc'" in str(report)
    assert "cannot resume from its own checkpoint" in str(report)
    assert type(report.differences[-1].got) is KeyError
    assert type(report.disturbed.error) is KeyError


def test_it_catches_the_fault() -> None:
    def swallows() -> None:
        for epoch in range(4):
            with contextlib.suppress(Exception):
                train.report({"e": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))

    report = verify_resume(trainer(swallows), fault="raise")
    assert "ended no attempt" in str(report)
    assert not report.ok


def test_it_is_not_deterministic() -> None:
    def unseeded() -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
        for epoch in range(start, 4):
            noise = int.from_bytes(os.urandom(8), "big")
            train.report({"noise": noise}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))

    report = verify_resume(trainer(unseeded))
    assert found(report, "noise") == [1, 2, 3, 4]
    assert "at training_iteration 1, before the fault" in str(report)
    assert "seed it" in str(report)
    assert verify_resume(trainer(unseeded), ignore=("noise",)).ok


def test_no_checkpoint_at_all() -> None:
    report = verify_resume(trainer(every=100))
    assert not report.ok
    assert str(report).startswith("The function reports no checkpoint")


def test_a_checkpoint_at_the_end_only() -> None:
    report = verify_resume(trainer(every=6))
    assert not report.ok
    assert "The first checkpoint comes with report 6 of 6" in str(report)


def test_a_failure_before_the_first_checkpoint_if_requested() -> None:
    report = verify_resume(trainer(every=3), at_report=2)
    assert report.ok
    assert "started over, because there was no checkpoint yet" in str(report)


# ------------------------------------------------------------------------------- final checkpoints


def test_only_the_final_checkpoint_differs() -> None:
    def forgets_a_part() -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
        seen: list[int] = []
        for epoch in range(start, 4):
            seen.append(epoch)
            state = {"epoch": epoch, "seen": {"epochs": list(seen)}}
            train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict(state))

    report = verify_resume(trainer(forgets_a_part))
    (difference,) = report.differences
    assert difference.what == "the length of seen/epochs"
    assert (difference.iteration, difference.expected, difference.got) == (None, 4, 2)
    assert "Every row agrees, but in the final checkpoint" in str(report)


def save_files(directory: Path, epoch: int, resumed: bool) -> None:
    (directory / "epoch.txt").write_text(str(epoch))
    (directory / "notes.txt").write_text("resumed" if resumed else "first run")
    (directory / "sub").mkdir()
    if resumed:
        (directory / "sub" / "extra.bin").write_bytes(b"12345")


def writes_directories(directory: str) -> None:
    checkpoint = train.get_checkpoint()
    start = 0
    if checkpoint:
        with checkpoint.as_directory() as saved:
            start = int(Path(saved, "epoch.txt").read_text()) + 1
    for epoch in range(start, 4):
        path = Path(directory, f"{train.get_context().get_attempt()}-{epoch}-{os.getpid()}")
        path.mkdir()
        save_files(path, epoch, bool(checkpoint))
        train.report({"epoch": epoch}, checkpoint=Checkpoint.from_directory(path))


def test_directories_are_compared_file_by_file(tmp_path: Path) -> None:
    directory = str(tmp_path)

    def writes() -> None:
        writes_directories(directory)

    report = verify_resume(trainer(writes))
    differences = {d.what: (repr(d.expected), repr(d.got)) for d in report.differences}
    assert differences == {
        "notes.txt at byte 0": ("'a file of 9 bytes'", "'a file of 7 bytes'"),
        "sub/extra.bin": ("nothing", "'a file of 5 bytes'"),
    }
    assert verify_resume(trainer(writes), ignore=["notes.txt", "sub"]).ok


def test_num_to_keep_0_still_compares_the_last_checkpoint() -> None:
    config = RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=0))
    report = verify_resume(trainer(run_config=config))
    assert report.ok, str(report)
    assert report.disturbed.checkpoint is not None


# ------------------------------------------------------------------------------------------- torch


def torch_training(config: dict[str, Any]) -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, betas=(0.95, 0.99))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    inputs = torch.randn(64, 4)
    targets = inputs.sin().sum(1, keepdim=True)
    start = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as path:
            state = torch.load(os.path.join(path, "state.pt"))
        for name, part in parts.items():
            if name not in config["forgets"]:
                part.load_state_dict(state[name])  # type: ignore[attr-defined]
        start = 0 if "epoch" in config["forgets"] else state["epoch"] + 1
    for epoch in range(start, 4):
        order = torch.randperm(64, generator=torch.Generator().manual_seed(epoch))
        for batch in torch.split(order, 16):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        scheduler.step()
        path = os.path.join(config["directory"], f"{time.monotonic_ns()}")
        os.mkdir(path)
        state = {name: part.state_dict() for name, part in parts.items()}  # type: ignore[attr-defined]
        torch.save({**state, "epoch": epoch}, os.path.join(path, "state.pt"))
        train.report(
            {"epoch": epoch, "loss": loss.item()}, checkpoint=Checkpoint.from_directory(path)
        )


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_right_torch_training_is_killed_and_passes(tmp_path: Path) -> None:
    from lockstep.train.torch import TorchTrainer

    config = {"directory": str(tmp_path), "forgets": ()}
    report = verify_resume(TorchTrainer(torch_training, train_loop_config=config))
    assert report.ok, str(report)
    assert report.disturbed.metrics_dataframe["attempt"].tolist() == [1, 1, 2, 2]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("forgets", "text"),
    [
        ((), "Survives"),
        (("optimizer",), "although it agrees on epoch: the function loads epoch but not"),
        (("scheduler",), "final checkpoint state.pt/scheduler/last_epoch is 2 instead of 4"),
        (("epoch",), "has epoch 0 instead of 2: the function loads its checkpoint but not"),
        (("model",), "probably not the model"),
        (("model", "optimizer", "scheduler", "epoch"), "does not load its checkpoint"),
    ],
    ids=str,
)
def test_a_torch_training_that_forgets(forgets: tuple[str, ...], text: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"directory": str(tmp_path), "forgets": forgets}
    report = verify_resume(trainer(torch_training, workers=0, **config), fault="raise")
    assert report.ok is (not forgets)
    assert text in str(report)


# --------------------------------------------------------------------------------------- the rest


def test_tolerance() -> None:
    def drifts() -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
        for epoch in range(start, 4):
            loss = 1000.0 + (0.01 if checkpoint else 0)
            train.report({"loss": loss}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))

    assert found(verify_resume(trainer(drifts)), "loss") == [3, 4]
    assert verify_resume(trainer(drifts), tolerance=1e-4).ok


def test_the_trainer_is_unchanged_and_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Raises(UserCallback):
        def after_report(self, *args: Any, **kwargs: Any) -> None:
            raise AssertionError("the trainer's callbacks are not for verification runs")

    monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path / "default"))
    run_config = RunConfig(failure_config=FailureConfig(5), callbacks=[Raises()], verbose=2)
    plan = FaultPlan().raise_in(rank=0, at_report=1, attempt=None)
    subject = trainer(run_config=run_config)
    subject.fault_plan = plan
    before = dict(vars(subject))
    assert verify_resume(subject).ok
    assert vars(subject) == before
    assert not (tmp_path / "default").exists()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "after_report" not in captured.err


def test_a_restored_trainer_is_verified_in_runs_of_its_own(tmp_path: Path) -> None:
    first = trainer(run_config=RunConfig(storage_path=tmp_path, verbose=0)).fit()
    files = sorted(Path(first.path).rglob("*"))
    subject = DataParallelTrainer.restore(first.path)
    report = verify_resume(subject)
    assert report.ok, str(report)
    assert report.disturbed.metrics_dataframe["attempt"].tolist() == [1, 1, 1, 2, 2, 2]
    assert sorted(Path(first.path).rglob("*")) == files
    with pytest.raises(TypeError, match=r"nonsense=…\): no such attribute"):
        subject.with_changes(nonsense=1)


def test_elastic_sizes() -> None:
    subject = trainer().with_changes(scaling_config=ScalingConfig(num_workers=(1, 2)))
    report = verify_resume(subject)
    assert repr(report.fault_plan) == "FaultPlan().kill(rank=0, at_report=4)"
    assert report.ok, str(report)


def test_temporary_storage_goes_with_the_report() -> None:
    report = verify_resume(trainer())
    paths = [Path(result.path) for result in (report.undisturbed, report.disturbed)]
    assert all(path.is_dir() for path in paths)
    del report
    gc.collect()
    assert not any(path.exists() for path in paths)


def test_storage_of_ones_own_stays(tmp_path: Path) -> None:
    report = verify_resume(trainer(run_config=RunConfig(name="verify", storage_path=tmp_path)))
    assert report.ok, str(report)
    del report
    gc.collect()
    assert len(list((tmp_path / "verify").iterdir())) == 2


def test_a_function_that_fails_by_itself_raises() -> None:
    def fails() -> None:
        raise ValueError("by itself")

    with pytest.raises(TrainingFailedError, match="by itself"):
        verify_resume(trainer(fails))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fault": "hang"}, ValueError, "fault='hang'"),
        ({"rank": 2}, ValueError, "rank=2.*from 0 to 1"),
        ({"rank": -1}, ValueError, "rank=-1"),
        ({"tolerance": -1}, ValueError, "tolerance=-1"),
        ({"tolerance": math.nan}, ValueError, "tolerance=nan"),
        ({"tolerance": "x"}, TypeError, "tolerance='x'"),
        ({"ignore": "loss"}, TypeError, "ignore='loss'"),
        ({"at_report": 7}, ValueError, r"at_report=7\): the undisturbed run made 6 report"),
        ({"at_report": 0}, ValueError, "at_report=0"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        verify_resume(trainer(workers=2), **options)


def test_what_cannot_be_verified() -> None:
    with pytest.raises(ValueError, match="would end this process"):
        verify_resume(trainer(workers=0))
    with pytest.raises(ValueError, match="made no report"):
        verify_resume(trainer(lambda: None))
    with pytest.raises(TypeError, match="expected a trainer"):
        verify_resume(descend)  # type: ignore[arg-type]
