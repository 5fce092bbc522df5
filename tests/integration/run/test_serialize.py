"""The training function reaches the workers, wherever it was defined; what cannot go is named."""

from __future__ import annotations

import functools
import importlib
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lockstep import train
from lockstep.train import Backend, BackendConfig, DataParallelTrainer, RunConfig
from tests.integration.runs import failure, fit, run_script

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


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_data_loader_with_processes_of_its_own_takes_classes_of_main(
    tmp_path: Path, method: str
) -> None:
    done = run_script(
        tmp_path,
        f"""
        import torch
        from torch.utils.data import DataLoader, Dataset

        from lockstep import train
        from lockstep.train import RunConfig
        from lockstep.train.torch import TorchTrainer

        class Row:
            def __init__(self, value):
                self.value = value

        class Rows(Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return Row(SCALE * index)

        SCALE = 3

        def collate(rows):
            return Row([row.value for row in rows])  # a class of this script, on its way back

        def train_func():
            loader = DataLoader(
                Rows(), batch_size=2, num_workers=1, collate_fn=collate,
                multiprocessing_context={method!r},
            )
            batches = list(loader)
            train.report({{"values": [batch.value for batch in batches],
                           "same": all(type(batch) is Row for batch in batches)}})

        # No guard: the loader's process must not run this script.
        result = TorchTrainer(train_func, run_config=RunConfig(verbose=0)).fit()
        print(result.reported_metrics)
        """,
    )
    assert done.stdout.splitlines() == ["{'values': [[0, 3], [6, 9]], 'same': True}"]


class Sleeper:
    """Can be pickled, but not loaded."""

    def __init__(self) -> None:
        self.size = 1

    def __setstate__(self, state: Any) -> None:
        raise ValueError("it does not wake up")


SLEEPER = Sleeper()


def uses_sleeper() -> object:
    return SLEEPER


def test_a_variable_that_does_not_load_is_named() -> None:
    inner = Sleeper()

    def closure() -> None:
        train.report({"size": inner.size})

    def of_a_helper() -> None:
        uses_sleeper()

    def with_default(sleeper: Any = inner) -> None:
        train.report({})

    def plain_func() -> None:
        train.report({})

    class Called:
        def __init__(self) -> None:
            self.number, self.sleeper = 1, Sleeper()

        def __call__(self) -> None:
            train.report({})

    cases: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (closure, {}, "variable 'inner', used by closure,"),
        (of_a_helper, {}, "global variable 'SLEEPER', used by uses_sleeper,"),
        (with_default, {}, "a default argument of "),
        (Called(), {}, "attribute 'sleeper' of the training function"),
        (plain_func, {"lr": 1, "model": {"deep": inner}}, "train_loop_config['model']['deep']"),
    ]
    for function, config, what in cases:
        error = failure(function, config=config, workers=1)
        assert str(error).startswith(f"Rank 0 failed with TypeError: {what}"), str(error)
        assert (
            "cannot be loaded in a worker (ValueError: it does not wake up); create or import it "
            "inside the training function instead of capturing it"
        ) in str(error)
        assert isinstance(error.__cause__, TypeError)
        assert isinstance(error.__cause__.__cause__, ValueError)


def test_a_module_that_exists_only_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("made_by_this_process")
    monkeypatch.setitem(sys.modules, made.__name__, made)

    def train_func() -> None:
        train.report({"name": made.__name__})

    text = str(failure(train_func, workers=1))
    assert "variable 'made', used by train_func, cannot be loaded in a worker (ModuleNot" in text


def test_a_module_that_is_only_an_attribute_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in_another_language.py").write_text(
        "from types import ModuleType\n"
        "class Handle:\n"
        "    def __setstate__(self, state): raise ValueError('not by value')\n"
        "handle = Handle()\n"
        "handle.x = 1\n"
        "parts = ModuleType('parts')\n"
        "parts.handle, parts.size = handle, 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    parts = importlib.import_module("in_another_language").parts

    def train_func() -> None:
        train.report({"size": parts.size})

    assert fit(train_func, workers=1).metrics["size"] == 3


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
