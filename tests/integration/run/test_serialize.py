"""The training function reaches the workers, wherever it was defined; what cannot go is named."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep import train
from lockstep.train import Backend, BackendConfig, DataParallelTrainer, RunConfig
from tests.integration.runs import fit, run_script

FACTOR = 3
LOCK = threading.Lock()


def scaled(value: int) -> int:
    return value * FACTOR


class Trainer:
    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, config: dict[str, Any]) -> None:
        train.report({"value": scaled(self.value), **config})

    def method(self) -> None:
        train.report({"value": scaled(self.value)})

    @staticmethod
    def static(config: dict[str, Any]) -> None:
        train.report({"value": config["a"]})

    @classmethod
    def of_the_class(cls) -> None:
        train.report({"value": cls.__name__})


def plain(value: Any, config: dict[str, Any]) -> None:
    train.report({"value": value, **config})


def configured(config: dict[str, Any], value: Any) -> None:
    train.report({"value": value, **config})


def decorated(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    return wrapper


@decorated
def wrapped(config: dict[str, Any]) -> None:
    train.report({"value": config["a"]})


# ------------------------------------------------------------------------------- from a test module


def test_closures_and_globals() -> None:
    local = [1, 2]

    def train_func() -> None:
        train.report({"local": local, "scaled": scaled(2)})

    assert fit(train_func).reported_metrics == {"local": [1, 2], "scaled": 6}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: train.report({"value": 1}), {"value": 1}),
        (lambda config: train.report(config), {"a": 5}),
        (functools.partial(plain, 4), {"value": 4, "a": 5}),
        (functools.partial(configured, value=4), {"value": 4, "a": 5}),
        (Trainer(2), {"value": 6, "a": 5}),
        (Trainer(2).method, {"value": 6}),
        (Trainer.static, {"value": 5}),
        (Trainer.of_the_class, {"value": "Trainer"}),
        (wrapped, {"value": 5}),
    ],
    ids=[
        "lambda",
        "lambda with config",
        "partial",
        "partial with keyword",
        "callable object",
        "bound method",
        "static method",
        "class method",
        "decorated",
    ],
)
def test_every_kind_of_callable(function: Callable[..., None], expected: dict[str, Any]) -> None:
    assert fit(function, config={"a": 5}).reported_metrics == expected


def test_what_the_workers_change_stays_there() -> None:
    seen: list[int] = []

    def train_func() -> None:
        seen.append(1)
        train.report({"seen": len(seen)})

    result = fit(train_func)
    assert [metrics["seen"] for metrics in result.metrics_by_rank] == [1, 1]
    assert seen == []


# ------------------------------------------------------------------------------ what cannot be sent


def captures_global() -> None:
    with LOCK:
        train.report({})


def has_default(lock: Any = LOCK) -> None:
    pass


def test_a_captured_variable_that_cannot_be_sent_is_named() -> None:
    connection = threading.Lock()

    def train_func() -> None:
        print(connection)

    expected = r"variable 'connection', used by .*train_func, \(a _thread.lock\) was found to be"
    with pytest.raises(TypeError, match=expected) as raised:
        fit(train_func)
    assert "non-serializable" in str(raised.value)
    assert "inside the training function" in str(raised.value)


@pytest.mark.parametrize(
    ("function", "config", "words"),
    [
        (captures_global, {}, "variable 'LOCK'"),
        (has_default, {}, "default argument of has_default"),
        (lambda config: None, {"db": {"lock": LOCK}}, "train_loop_config['db']['lock']"),
        (lambda config: None, {"items": [1, LOCK]}, "train_loop_config['items'][1]"),
        (functools.partial(plain, LOCK), {}, "argument of a partial"),
        (functools.partial(configured, value=LOCK), {}, "partial argument 'value'"),
        (Trainer(LOCK), {}, ".value"),  # type: ignore[arg-type]
        (Trainer(LOCK).method, {}, ".value"),  # type: ignore[arg-type]
    ],
)
def test_wherever_it_hides_it_is_named(
    function: Callable[..., None], config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=re.escape(words)) as raised:
        fit(function, config=config, storage_path=tmp_path)
    assert "was found to be non-serializable" in str(raised.value)
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_an_attribute_of_a_captured_variable_is_named() -> None:
    holder = SimpleNamespace(lock=threading.Lock())

    def train_func() -> None:
        print(holder)

    expected = r"\.lock of variable 'holder', used by .*train_func, \(a _thread.lock\) was"
    with pytest.raises(TypeError, match=expected):
        fit(train_func)


def test_one_that_is_captured_deeper() -> None:
    handle = threading.Lock()

    def inner() -> None:
        print(handle)

    def train_func() -> None:
        inner()

    with pytest.raises(TypeError, match=r"'handle', used by .*inner"):
        fit(train_func)


def test_metadata_and_backends_that_cannot_be_sent_are_named() -> None:
    class Holding(BackendConfig):
        def make_backend(self) -> Backend:
            backend = Backend()
            backend.lock = LOCK  # type: ignore[attr-defined]
            return backend

    quiet = RunConfig(verbose=0)
    with pytest.raises(TypeError, match=r"metadata\['lock'\].*non-serializable"):
        DataParallelTrainer(lambda: None, metadata={"lock": LOCK}, run_config=quiet).fit()
    with pytest.raises(TypeError, match=r"backend\.lock.*non-serializable"):
        DataParallelTrainer(lambda: None, backend_config=Holding(), run_config=quiet).fit()


def test_a_backend_and_metadata_that_are_local_to_a_function() -> None:
    class Local(Backend):
        def announce(self, rank: int, address: str) -> Any:
            return rank + 40

        def setup(self, wiring: Any) -> None:
            assert wiring.announcements == (40,)

    class LocalConfig(BackendConfig):
        def make_backend(self) -> Backend:
            return Local()

    def train_func() -> None:
        train.report({"metadata": train.get_context().get_metadata()["function"](2)})

    result = DataParallelTrainer(
        train_func,
        backend_config=LocalConfig(),
        metadata={"function": lambda x: x + 1},
        run_config=RunConfig(verbose=0),
    ).fit()
    assert result.metrics["metadata"] == 3


# ----------------------------------------------------------------------------------- from a script


def test_a_script_with_a_sibling_module(tmp_path: Path) -> None:
    (tmp_path / "sibling.py").write_text(
        "from lockstep import train\n"
        "class Model:\n"
        "    size = 7\n"
        "class SiblingError(Exception):\n"
        "    pass\n"
        "def train_func():\n"
        "    train.report({'size': Model.size})\n"
        "def fail():\n"
        "    raise SiblingError('from the sibling')\n"
    )
    done = run_script(
        tmp_path,
        """
        from dataclasses import dataclass
        from lockstep import train
        from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig, WorkerGroupError
        from sibling import Model, SiblingError, fail, train_func

        OFFSET = 1

        @dataclass
        class Settings:
            lr: float

        class MainError(Exception):
            pass

        def helper(model):
            return model.size + OFFSET

        def own(config):
            train.report({"size": helper(Model()), "lr": config["settings"].lr})

        def own_fail():
            raise MainError("from main")

        def fit(function, **config):
            return DataParallelTrainer(
                function,
                train_loop_config=config,
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(verbose=0),
            ).fit()

        print(fit(train_func).reported_metrics)
        print(fit(own, settings=Settings(0.5)).reported_metrics)
        print(fit(lambda: train.report({"x": OFFSET})).reported_metrics)
        for function, kind in ((fail, SiblingError), (own_fail, MainError)):
            try:
                fit(function)
            except WorkerGroupError as error:
                print(type(error.__cause__) is kind, error.__cause__)
        """,
    )
    assert done.stdout.splitlines() == [
        "{'size': 7}",
        "{'size': 8, 'lr': 0.5}",
        "{'x': 1}",
        "True from the sibling",
        "True from main",
    ]
    assert done.stderr == ""


def test_objects_of_classes_in_main_can_be_pickled_in_a_worker(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import functools, multiprocessing, pickle
        from lockstep import train
        from lockstep.train import DataParallelTrainer, RunConfig

        class Model:
            def __init__(self, size):
                self.size = size

        class Job:
            def __call__(self):
                train.report({"size": pickle.loads(pickle.dumps(Model(3))).size})

            def method(self):
                self()

        def function(config=None):
            Job()()

        def partial(n):
            Job()()

        for each in (function, Job(), Job().method, functools.partial(partial, 1)):
            result = DataParallelTrainer(each, run_config=RunConfig(verbose=0)).fit()
            print(result.reported_metrics)
        """,
    )
    assert done.stdout.splitlines() == ["{'size': 3}"] * 4


def test_a_whole_model_of_a_class_in_main_goes_through_torch_save(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os
        import tempfile

        import torch

        from lockstep import train
        from lockstep.train import Checkpoint, RunConfig, ScalingConfig
        from lockstep.train.torch import TorchTrainer

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)

            def forward(self, x):
                return self.layer(x)

        def train_func():
            model = train.torch.prepare_model(Net())
            with tempfile.TemporaryDirectory() as directory:
                torch.save(model.module, os.path.join(directory, "model.pt"))
                train.report({}, checkpoint=Checkpoint.from_directory(directory))

        if __name__ == "__main__":
            result = TorchTrainer(
                train_func,
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(verbose=0),
            ).fit()
            with result.checkpoint.as_directory() as directory:
                model = torch.load(os.path.join(directory, "model.pt"), weights_only=False)
            print(type(model) is Net, tuple(model(torch.ones(1, 2)).shape))
        """,
    )
    assert done.stdout.splitlines()[-1] == "True (1, 1)"


def test_a_script_without_a_main_guard_does_not_run_again_in_workers(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        from lockstep import train
        from lockstep.train import DataParallelTrainer, RunConfig

        print("top of the script")

        def train_func():
            train.report({"name": __name__})

        result = DataParallelTrainer(train_func, run_config=RunConfig(verbose=0)).fit()
        print(result.metrics["name"])
        """,
    )
    assert done.stdout.splitlines() == ["top of the script", "__main__"]


def test_code_without_a_file(tmp_path: Path) -> None:
    """As from a notebook cell or ``python -c``."""
    done = run_script(
        tmp_path,
        """
        source = '''
        from lockstep import train
        from lockstep.train import DataParallelTrainer, RunConfig

        def helper():
            return 41

        def train_func():
            train.report({"x": helper() + 1})

        print(DataParallelTrainer(train_func, run_config=RunConfig(verbose=0)).fit().metrics["x"])
        '''
        import textwrap
        exec(compile(textwrap.dedent(source), "<cell 1>", "exec"), {"__name__": "__main__"})
        """,
    )
    assert done.stdout.splitlines() == ["42"]
