"""One run from the outside: what is given, what the function sees, where it ends up."""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import re
import sys
import threading
import warnings
from collections import UserDict
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import lockstep
from lockstep import air, settings, train, tune
from lockstep.engine.resources import available_cpus
from lockstep.errors import InsufficientResourcesError
from lockstep.train import (
    Backend,
    BackendConfig,
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    api,
)
from lockstep.train.torch import TorchConfig, TorchTrainer
from tests.integration.runs import fit, trainer

# ------------------------------------------------------------------------- the function's argument


def test_no_argument_or_the_config() -> None:
    def without() -> None:
        train.report({"got": "nothing"})

    def with_config(config: dict[str, Any]) -> None:
        train.report({"got": config})

    def optional(config: dict[str, Any] | None = None) -> None:
        train.report({"got": config})

    def other_name(cfg: dict[str, Any] | None = None) -> None:
        train.report({"got": cfg})

    def several(epochs: int = 3, lr: float = 0.1) -> None:
        train.report({"got": epochs})

    config = {"lr": 0.1, "layers": [1, 2]}
    assert fit(without, config=config).metrics["got"] == "nothing"
    assert fit(with_config, config=config).metrics["got"] == config
    assert fit(with_config).metrics["got"] == {}
    assert fit(optional, config=config).metrics["got"] == config
    assert fit(other_name, config=config).metrics["got"] == config
    assert fit(several, config=config).metrics["got"] == 3


def test_each_worker_has_a_config_of_its_own() -> None:
    def train_func(config: dict[str, Any]) -> None:
        config["list"].append(train.get_context().get_world_rank())
        train.report({"list": config["list"]})

    config: dict[str, Any] = {"list": []}
    result = fit(train_func, config=config)
    assert [metrics["list"] for metrics in result.metrics_by_rank] == [[0], [1]]
    assert config == {"list": []}


class Attributes(dict[str, Any]):
    """A dict with its keys as attributes, as libraries for configs make them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Brusque(dict[str, Any]):
    """The same in one line, as people write it: what is not there is a KeyError."""

    __getattr__ = dict.__getitem__


class Aliased(dict[str, Any]):
    """The usual recipe: keys and attributes are the same, until it is copied or pickled."""

    def __init__(self, *args: Any, **items: Any) -> None:
        super().__init__(*args, **items)
        self.__dict__ = self


class Frozen(dict[str, Any]):
    def update(self, *args: Any, **items: Any) -> None:
        raise TypeError("frozen")


class Locked(dict[str, Any]):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()


class Wrapping(MutableMapping[str, Any]):
    def __init__(self, items: dict[str, Any]) -> None:
        self.items_ = items

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


@pytest.mark.parametrize("kind", [Aliased, Frozen, Locked, Wrapping, UserDict])
def test_any_kind_of_config_is_copied_and_sent_and_searched(kind: Any) -> None:
    def train_func(config: Any) -> None:
        seen = {"lr": config["lr"], "opt": [config["opt"]["name"], config["opt"]["momentum"]]}
        if isinstance(config, Aliased):
            seen["attribute"], seen["below"] = vars(config)["lr"], vars(vars(config)["opt"])["name"]
        train.report(seen)

    below = dict if kind is Locked else kind
    given = kind({"lr": 0.1, "opt": below({"name": "sgd", "momentum": 0.9})})
    once = trainer(train_func, config=given, workers=1)
    given["lr"] = 0.2
    space = {"train_loop_config": {"lr": 0.3, "opt": {"name": "adam"}}}
    (trial,) = tune.Tuner(once, param_space=space).fit()
    for result, lr, name in ((once.fit(), 0.1, "sgd"), (trial, 0.3, "adam")):
        seen = result.reported_metrics
        assert (seen["lr"], seen["opt"]) == (lr, [name, 0.9])
        if kind is Aliased:
            assert (seen["attribute"], seen["below"]) == (lr, name)


def test_the_config_stays_what_it_is() -> None:
    def train_func(config: Attributes) -> None:
        train.report({"lr": config.lr})

    given = Attributes(lr=0.1)
    once = trainer(train_func, config=given, workers=1)
    given["lr"] = 0.2  # the trainer has a copy
    result = once.fit()
    assert result.reported_metrics == {"lr": 0.1}
    assert result.config == {"lr": 0.1}
    kept: Any = DataParallelTrainer.restore(result.path).train_loop_config
    assert kept.lr == 0.1
    (trial,) = tune.Tuner(once, param_space={"train_loop_config": {"lr": 0.3}}).fit()
    assert trial.reported_metrics == {"lr": 0.3}
    assert type(trainer(train_func, config=MappingProxyType(given)).train_loop_config) is dict
    by_key = fit(lambda config: train.report({"lr": config["lr"]}), config=Brusque(lr=0.1))
    assert by_key.reported_metrics == {"lr": 0.1}


def two(a: int, b: int) -> None:
    pass


def keyword_only(config: dict[str, Any], *, lr: float) -> None:
    pass


@pytest.mark.parametrize(("function", "names"), [(two, "a, b"), (keyword_only, "config, lr")])
def test_too_many_arguments_are_refused_when_the_trainer_is_built(
    function: Callable[..., None], names: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{function.__name__}({names})")):
        DataParallelTrainer(function)
    DataParallelTrainer(functools.partial(function, **dict.fromkeys(names.split(", ")[1:], 1)))


async def coroutine(config: dict[str, Any]) -> None:
    pass


def generator() -> Iterator[int]:
    yield 1


async def asynchronous_generator() -> AsyncIterator[int]:
    yield 1


class Asynchronous:
    async def __call__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (coroutine, "coroutine is a coroutine function"),
        (functools.partial(coroutine, {}), "is a coroutine function"),
        (Asynchronous(), "is a coroutine function"),
        (generator, "generator is a generator function"),
        (asynchronous_generator, "asynchronous_generator is a generator function"),
    ],
)
def test_a_function_that_would_not_run_is_refused(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        DataParallelTrainer(function)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"train_loop_per_worker": 3}, TypeError, "train_loop_per_worker=3"),
        ({"train_loop_config": [1]}, TypeError, "train_loop_config=[1]"),
        ({"scaling_config": {"num_workers": 2}}, TypeError, "scaling_config={'num_workers': 2}"),
        ({"run_config": "x"}, TypeError, "run_config='x'"),
        ({"resume_from_checkpoint": "/x"}, TypeError, "resume_from_checkpoint='/x'"),
        ({"backend_config": "gloo"}, TypeError, "backend_config='gloo'"),
        ({"metadata": [1]}, TypeError, "metadata=[1]"),
    ],
)
def test_a_trainer_names_what_is_wrong(
    arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        DataParallelTrainer(**{"train_loop_per_worker": lambda: None, **arguments})


class RayShapedBackend(Backend):
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        raise AssertionError("nobody calls this")


class MixedConfig(BackendConfig):
    def make_backend(self) -> Backend:
        return RayShapedBackend()


class ConfigWithTwo(MixedConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return RayShapedBackend


def test_hooks_of_ray_that_nobody_calls_are_refused() -> None:
    with pytest.raises(TypeError, match=r"ConfigWithTwo\.backend_cls .*make_backend\(\)"):
        DataParallelTrainer(lambda: None, backend_config=ConfigWithTwo())
    mixed = DataParallelTrainer(lambda: None, backend_config=MixedConfig())
    with pytest.raises(TypeError, match=r"RayShapedBackend\.on_start .*setup\(wiring\)"):
        mixed.fit()


def test_a_function_given_to_restore_by_position_raises_with_its_name(tmp_path: Path) -> None:
    misplaced: Any = two
    with pytest.raises(TypeError, match="given by name: train_loop_per_worker="):
        DataParallelTrainer.restore(tmp_path, misplaced)


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "words"),
    [
        (ScalingConfig, {"num_workers": -1}, ValueError, "num_workers=-1"),
        (ScalingConfig, {"num_workers": 1.5}, TypeError, "num_workers=1.5"),
        (ScalingConfig, {"num_workers": True}, TypeError, "num_workers=True"),
        (ScalingConfig, {"num_workers": "2"}, TypeError, "num_workers='2'"),
        (ScalingConfig, {"num_workers": [1, 2]}, TypeError, "(min, max), a tuple"),
        (ScalingConfig, {"num_workers": (0, 2)}, ValueError, "given as (0, 2)"),
        (ScalingConfig, {"use_gpu": "yes"}, TypeError, "use_gpu='yes'"),
        (ScalingConfig, {"resources_per_worker": {"CPU": -2}}, ValueError, "-2"),
        (ScalingConfig, {"resources_per_worker": {"CPU": math.nan}}, ValueError, "nan"),
        (ScalingConfig, {"resources_per_worker": {"GPU": math.inf}}, ValueError, "inf"),
        (ScalingConfig, {"resources_per_worker": ["CPU"]}, TypeError, "['CPU']"),
        (ScalingConfig, {"resources_per_worker": {"GPU": 1}}, ValueError, "use_gpu=True"),
        (
            ScalingConfig,
            {"resources_per_worker": {"GPU": 1.5}, "use_gpu": True},
            ValueError,
            "1.5}): expected an integer, or a part of one GPU",
        ),
        (FailureConfig, {"max_failures": -2}, ValueError, "max_failures=-2"),
        (FailureConfig, {"max_failures": None}, TypeError, "max_failures=None"),
        (CheckpointConfig, {"num_to_keep": -1}, ValueError, "num_to_keep=-1"),
        (CheckpointConfig, {"num_to_keep": 1.0}, TypeError, "num_to_keep=1.0"),
        (CheckpointConfig, {"checkpoint_score_order": "up"}, ValueError, "'up'"),
        (CheckpointConfig, {"checkpoint_score_attribute": ""}, ValueError, "attribute=''"),
        (RunConfig, {"name": "a/b"}, ValueError, "'a/b'"),
        (RunConfig, {"name": ".."}, ValueError, "'..'"),
        (RunConfig, {"name": " "}, ValueError, "' '"),
        (RunConfig, {"name": "a\0b"}, ValueError, r"'a\x00b'"),
        (RunConfig, {"storage_path": 3}, TypeError, "storage_path=3"),
        (RunConfig, {"storage_path": ""}, ValueError, "storage_path=''"),
        (RunConfig, {"hang_warning_s": math.inf}, ValueError, "hang_warning_s=inf"),
        (RunConfig, {"hang_timeout_s": math.nan}, ValueError, "hang_timeout_s=nan"),
        (TorchConfig, {"timeout_s": math.inf}, ValueError, "timeout_s=inf"),
        (RunConfig, {"storage_filesystem": object()}, ValueError, "storage_path"),
        (RunConfig, {"failure_config": 3}, TypeError, "failure_config=3"),
        (RunConfig, {"checkpoint_config": {}}, TypeError, "checkpoint_config={}"),
        (RunConfig, {"callbacks": "wandb"}, TypeError, "callbacks='wandb'"),
        (RunConfig, {"stop": 3}, TypeError, "stop=3"),
        (RunConfig, {"stop": {1: 2}}, TypeError, "stop={1: …}"),
        (RunConfig, {"stop": {"loss": "low"}}, ValueError, "'loss': 'low'"),
        (RunConfig, {"stop": {"loss": float("nan")}}, ValueError, "'loss': nan"),
        (RunConfig, {"verbose": 4}, ValueError, "verbose=4"),
        (RunConfig, {"working_dir": "here"}, ValueError, "working_dir='here'"),
    ],
)
def test_a_config_names_the_value_that_is_wrong(
    kind: type, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)) as raised:
        kind(**arguments)
    assert kind.__name__ in str(raised.value)


def test_configs_are_the_same_classes_under_every_name() -> None:
    assert air.ScalingConfig is ScalingConfig
    assert air.RunConfig is RunConfig
    assert air.CheckpointConfig is CheckpointConfig
    assert air.FailureConfig is FailureConfig
    assert air.Checkpoint is Checkpoint
    assert FailureConfig().max_failures == 0
    assert ScalingConfig().num_workers == 1
    assert RunConfig(failure_config=None, callbacks=None) == RunConfig()  # type: ignore[arg-type]


# ----------------------------------------------------------------------------- what a worker sees


def test_one_worker_without_a_scaling_config() -> None:
    def train_func() -> None:
        train.report({"size": train.get_context().get_world_size()})

    quiet = RunConfig(verbose=0)
    assert DataParallelTrainer(train_func, run_config=quiet).fit().metrics["size"] == 1


def test_who_am_i() -> None:
    def train_func() -> None:
        from lockstep.air import session

        context = train.get_context()
        assert isinstance(context, train.TrainContext)
        assert context.get_world_rank() == session.get_world_rank() == train.world_rank()
        assert context.get_world_size() == session.get_world_size() == train.world_size()
        assert context.get_local_rank() == session.get_local_rank() == train.local_rank()
        assert context.get_trial_id() == session.get_trial_id()
        train.report(
            {
                "ranks": [context.get_world_rank(), context.get_local_rank()],
                "sizes": [context.get_world_size(), context.get_local_world_size()],
                "node": context.get_node_rank(),
                "id": context.get_trial_id(),
                "name": context.get_trial_name(),
                "dir": context.get_trial_dir(),
                "experiment": context.get_experiment_name(),
                "storage": context.get_storage_path(),
                "resources": context.get_trial_resources(),
                "metadata": context.get_metadata(),
                "attempt": context.get_attempt(),
            }
        )

    result = DataParallelTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=3),
        run_config=RunConfig(name="who", verbose=0),
        metadata={"who": "me"},
    ).fit()
    assert [m["ranks"] for m in result.metrics_by_rank] == [[0, 0], [1, 1], [2, 2]]
    seen = result.metrics
    assert seen["sizes"] == [3, 3]
    assert seen["node"] == 0
    assert re.fullmatch(r"[0-9a-f]{5}_00000", seen["id"])
    assert seen["id"] == seen["trial_id"]
    assert seen["name"] == f"DataParallelTrainer_{seen['id']}"
    assert seen["dir"] == seen["storage"] == result.path
    assert seen["experiment"] == "who"
    assert seen["resources"] == {"CPU": 1}
    assert seen["metadata"] == {"who": "me"}
    assert seen["attempt"] == 1


def test_a_script_for_the_frameworks_own_launcher_finds_what_it_reads() -> None:
    def train_func() -> None:
        import torch.distributed as dist
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
        found = {name: os.environ[name] for name in names}
        port = int(os.environ["MASTER_PORT"])
        store = TCPStore(found["MASTER_ADDR"], port, is_master=False)
        store.add("came", 1)
        train.report({**found, "backend": dist.get_backend(), "rank": dist.get_rank()})
        assert store.add("came", 0) == 2

    ranks = (
        TorchTrainer(
            train_func,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(verbose=0),
        )
        .fit()
        .metrics_by_rank
    )
    assert ranks == [
        {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "backend": "gloo",
            "rank": rank,
        }
        for rank in (0, 1)
    ]
    assert not {"RANK", "MASTER_PORT"} & set(os.environ)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_process_group_may_be_destroyed_and_made_again(workers: int) -> None:
    def train_func() -> None:
        import torch
        import torch.distributed as dist

        sums = []
        for _ in range(3):
            value = torch.tensor([1.0 + dist.get_rank()])
            dist.all_reduce(value)
            sums.append(value.item())
            dist.destroy_process_group()
            dist.init_process_group("gloo")
        train.report({"sums": sums, "size": dist.get_world_size()})

    for _ in range(2):  # in process, the next run finds torch as it was
        metrics = (
            TorchTrainer(
                train_func,
                scaling_config=ScalingConfig(num_workers=workers),
                run_config=RunConfig(verbose=0),
            )
            .fit()
            .metrics
        )
        assert metrics["sums"] == ([3.0] * 3 if workers else [1.0] * 3)
        assert metrics["size"] == (workers or 1)


def test_the_keys_of_the_store_cannot_be_guessed() -> None:
    def train_func() -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False)
        keys = store.list_keys() if hasattr(store, "list_keys") else []
        train.report({"prefixes": sorted({key.partition("/")[0] for key in keys})})

    seen = []
    for _ in range(2):
        result = TorchTrainer(
            train_func,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(verbose=0),
        ).fit()
        seen += [name for name in result.metrics["prefixes"] if name != "init"]
    assert all(re.fullmatch(r"lockstep-[0-9a-f]{32}", name) for name in seen), seen
    assert len(set(seen)) == len(seen)


def test_outside_a_training_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.air import session

    assert (train.world_rank(), train.local_rank()) == (0, 0)
    assert (train.world_size(), train.local_world_size()) == (1, 1)
    assert train.get_checkpoint() is None
    assert train.load_checkpoint() is None
    monkeypatch.setattr(api, "_warned_outside", False)
    with pytest.warns(UserWarning, match=r"get_context\(\) was called outside a training") as told:
        assert train.get_context().get_world_size() == 1
    assert told[0].filename == __file__
    monkeypatch.setattr(api, "_warned_outside", False)
    with pytest.warns(UserWarning, match=r"get_trial_id\(\) was called outside a training") as told:
        assert session.get_trial_id() == ""
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once
        assert session.get_world_rank() == 0
        assert session.get_world_size() == 1


@pytest.fixture
def env_vars() -> Iterator[None]:
    lockstep.init(runtime_env={"env_vars": {"TRACKER_KEY": "secret", "OMP_NUM_THREADS": "3"}})
    yield
    lockstep.shutdown()


@pytest.mark.usefixtures("env_vars")
def test_runtime_env_reaches_workers_before_user_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reads_at_import.py").write_text("import os\nKEY = os.environ['TRACKER_KEY']\n")
    monkeypatch.syspath_prepend(tmp_path)

    def train_func() -> None:
        import reads_at_import  # type: ignore[import-not-found]

        train.report({"key": reads_at_import.KEY, "threads": os.environ["OMP_NUM_THREADS"]})

    assert fit(train_func).reported_metrics == {"key": "secret", "threads": "3"}
    assert "TRACKER_KEY" not in os.environ


@pytest.mark.parametrize(
    ("runtime_env", "words"),
    [
        ({"pip": ["x"]}, "'pip'"),
        ({"env_vars": {"A": 1}}, "'A': …"),
        ({"env_vars": ["A=1"]}, "'env_vars': …}): of type list"),
        ({"env_vars": ""}, "'env_vars': …}): of type str"),
        ("x", "runtime_env=…) is of type str"),
    ],
)
def test_a_runtime_env_that_cannot_be_had(runtime_env: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        lockstep.init(runtime_env=runtime_env)
    with pytest.raises(ValueError, match="engine='mars'"):
        lockstep.init(engine="mars")


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_seconds_of_a_variable_are_finite(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_STOP_GRACE_S", text)
    with pytest.raises(ValueError, match=f"LOCKSTEP_STOP_GRACE_S='{text}'"):
        settings.stop_grace_seconds()


def test_the_drivers_environment_path_and_directory_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_LATE", "yes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "lib")

    def train_func() -> None:
        train.report({"env": os.environ["SET_LATE"], "cwd": os.getcwd(), "path": sys.path[0]})

    assert fit(train_func).reported_metrics == {
        "env": "yes",
        "cwd": str(tmp_path),
        "path": str(tmp_path / "lib"),
    }


@pytest.mark.parametrize(("working_dir", "folder"), [("run", ""), ("rank", "rank_1")])
def test_working_dir(working_dir: str, folder: str) -> None:
    def train_func() -> None:
        Path("note.txt").write_text(str(train.get_context().get_world_rank()))
        train.report({"cwd": os.getcwd()})

    before = os.getcwd()
    result = fit(train_func, working_dir=working_dir)
    assert Path(result.metrics_by_rank[1]["cwd"]) == Path(result.path, folder)
    assert Path(result.path, folder, "note.txt").exists()
    assert os.getcwd() == before


def test_a_script_for_another_version_of_ray_keeps_its_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    result = fit(lambda: train.report({"a": 1}))
    assert result.metrics["a"] == 1
    assert len(result.metrics_dataframe) == 1


def test_workers_may_start_processes_and_run_their_exit_handlers(tmp_path: Path) -> None:
    def train_func(config: dict[str, str]) -> None:
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(os.getppid) == os.getpid()
        rank = train.get_context().get_world_rank()
        atexit.register(Path(config["dir"], f"exit_{rank}").touch)

    fit(train_func, config={"dir": str(tmp_path)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exit_0", "exit_1"]


def test_ranks_do_not_share_their_random_numbers() -> None:
    def train_func() -> None:
        import random

        train.report({"random": random.random()})

    seen = [
        metrics["random"]
        for _ in range(2)
        for metrics in fit(train_func, workers=2).metrics_by_rank
    ]
    assert len(set(seen)) == 4


# ------------------------------------------------------------------------------------ the terminal


def test_verbose_0_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        print("from a worker")
        train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"a": 1}))

    result = fit(train_func, workers=1)
    assert tuple(capfd.readouterr()) == ("", "")
    assert Path(result.path, "logs", "rank_0.log").read_text() == "from a worker\n"


def test_what_workers_print_is_in_files_and_on_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        print(f"hello from {rank}")
        print("to stderr", file=sys.stderr)
        print("no newline at the end", end="")

    result = fit(train_func, verbose=1)
    printed = "".join(capfd.readouterr())
    for rank in (0, 1):
        assert f"hello from {rank}" in printed
        log = Path(result.path, "logs", f"rank_{rank}.log").read_text()
        assert log == f"hello from {rank}\nto stderr\nno newline at the end"
    assert printed.count("no newline at the end") == 1  # both ranks said the same


def test_more_workers_than_cores_run_with_one_warning(capfd: pytest.CaptureFixture[str]) -> None:
    workers = available_cpus() + 1
    result = fit(lambda: train.report({"a": 1}), workers=workers, verbose=1)
    assert len(result.metrics_by_rank) == workers
    printed = "".join(capfd.readouterr())
    assert printed.count("workers share") == 1
    assert f"{workers} workers share {available_cpus()} CPU(s)" in printed


def test_threads_are_shared_out_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    def train_func() -> None:
        train.report({"threads": os.environ.get("OMP_NUM_THREADS")})

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    share = str(max(1, available_cpus() // 2))
    assert fit(train_func).metrics["threads"] == share
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert fit(train_func).metrics["threads"] == "5"


# ---------------------------------------------------------------------------------------- stopping


def endless() -> None:
    for step in range(10_000):
        train.report({"step": step, "val": {"acc": step / 10}, "name": "x", "none": None})
    raise AssertionError("got no order to stop")


@pytest.mark.parametrize(
    ("stop", "rows"),
    [
        ({"training_iteration": 3}, 3),
        ({"step": 1}, 2),
        ({"step": 100, "training_iteration": 2}, 2),
        ({"val/acc": 0.35}, 5),
        ({"name": 1, "none": 0, "timesteps_total": 1, "step": 1}, 2),
        ({"not_reported": 1, "step": 0}, 1),
    ],
)
def test_stop_at_a_metric(stop: dict[str, float], rows: int) -> None:
    result = fit(endless, stop=stop)
    assert len(result.metrics_dataframe) == rows
    assert result.state == "finished"
    assert result.metrics["done"] is True


def test_stop_by_a_function() -> None:
    seen: list[str] = []

    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        seen.append(trial_id)
        return bool(result["step"] >= 4)

    result = fit(endless, stop=stop)
    assert result.metrics["step"] == 4
    assert seen == [result.metrics["trial_id"]] * 5


def test_a_stopped_function_is_not_kept_by_except_exception() -> None:
    def train_func() -> None:
        while True:
            with contextlib.suppress(Exception):
                train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"a": 1}))

    result = fit(train_func, stop={"training_iteration": 2})
    assert len(result.metrics_dataframe) == 2
    assert len(result.best_checkpoints) == 2


# ----------------------------------------------------------------------------------- run after run


def test_fit_twice_gives_two_runs() -> None:
    once = trainer(lambda: train.report({"pid": os.getpid()}), name="twice")
    first, second = once.fit(), once.fit()
    assert first.path != second.path
    assert first.log_dir.parent == second.log_dir.parent
    assert first.metrics["trial_id"] != second.metrics["trial_id"]
    assert first.metrics["experiment_id"] != second.metrics["experiment_id"]
    assert len(first.metrics_dataframe) == len(second.metrics_dataframe) == 1


def test_a_resource_that_this_machine_has_no_idea_of() -> None:
    scaling = ScalingConfig(num_workers=1, resources_per_worker={"TPU": 1})
    with pytest.raises(InsufficientResourcesError, match=r"'TPU': 1.*CPUs and GPUs only"):
        DataParallelTrainer(lambda: None, scaling_config=scaling).fit()


def test_runs_at_once_in_several_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def train_func(config: dict[str, int]) -> None:
        for step in range(20):
            train.report({"n": config["n"], "step": step})

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: fit(train_func, config={"n": n}), range(12)))
    assert [result.metrics["n"] for result in results] == list(range(12))
    assert all(len(result.metrics_dataframe) == 20 for result in results)


def test_a_subclass_names_its_runs() -> None:
    class MyTrainer(DataParallelTrainer):
        pass

    result = MyTrainer(
        lambda: train.report({}),
        backend_config=BackendConfig(),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert result.log_dir.name.startswith("MyTrainer_")
    assert result.log_dir.parent.name.startswith("MyTrainer_2")


def test_legacy_checkpoints_without_a_report() -> None:
    def train_func() -> None:
        assert train.load_checkpoint() is None
        for epoch in range(3):
            train.save_checkpoint(epoch=epoch, rank=train.world_rank())
            if train.world_rank() == 0:
                kept = train.load_checkpoint()
                assert kept is not None
                assert kept["epoch"] == epoch

    result = fit(train_func)
    assert result.metrics == {}
    assert len(result.metrics_dataframe) == 0
    assert result.checkpoint is not None
    kept = result.checkpoint.to_dict()
    assert (kept["epoch"], kept["rank"], kept["_current_checkpoint_id"]) == (2, 0, 2)
