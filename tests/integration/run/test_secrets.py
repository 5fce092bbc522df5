"""Keys, passwords and values of variables are neither stored nor shown, and files are private."""

from __future__ import annotations

import os
import pickle
import stat
import traceback
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import data, runtime, train, tune
from lockstep.errors import StorageError
from lockstep.redact import redact, redacted, without_secrets
from lockstep.storage import open_storage
from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig
from lockstep.train.record.kept_objects import pickle_each
from lockstep.train.record.left_out import reduce_without_secrets
from tests.integration.runs import failure, fit, run_script, trainer

SECRET = "hUnTeR" + str(2)  # not as one word: the script's source is kept with a run


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://key:hUnTeR2@bucket/a", "s3://bucket/a"),
        ("s3://key:hUn/TeR2@bucket/a@b", "s3://b"),
        ("s3://key:hUn?TeR2@bucket/a", "s3://bucket/a"),
        ("s3://key:hUn@TeR2@bucket/a", "s3://bucket/a"),
        ("s3://key:hUn TeR2@bucket/a", "s3://bucket/a"),
        ("s3://hUnTeR2@bucket/a", "s3://bucket/a"),
        ("s3://bucket/a@b?region=eu", "s3://bucket/a@b?region=eu"),
        ("s3://bucket/a?secret_key=hUnTeR2&region=eu", "s3://bucket/a?region=eu"),
        ("s3://bucket/a?region=eu&session_token=hUnTeR2", "s3://bucket/a?region=eu"),
        ("abfs://box:hUnTeR2@account.dfs.core.windows.net/a",
         "abfs://box@account.dfs.core.windows.net/a"),
        ("hdfs://me@host:8020/a@b", "hdfs://me@host:8020/a@b"),
        ("hdfs://host:8020/a@b", "hdfs://host:8020/a@b"),
        ("file://me:hUnTeR2@host/a", "file://host/a"),
        ("https://hUnTeR2@host/a", "https://host/a"),
        ("/a/b:c@d", "/a/b:c@d"),
    ],
)  # fmt: skip
def test_a_uri_without_its_secrets(uri: str, shown: str) -> None:
    assert without_secrets(uri) == shown
    if " " not in uri:
        assert redact(f"look: '{uri}'!") == f"look: '{shown}'!"


def test_long_texts_take_no_long_time() -> None:
    for text in ("a" * 300_000 + "://", "s3://b?" + "key" * 100_000, "s3://" + "a:" * 100_000):
        redact(text)


def test_values_for_storing() -> None:
    plain = {"a": [1, "x"], "b": ("y", {"c": None})}
    assert redacted(plain) is plain
    assert redacted({"a": ["s3://k:p@b"]}) == {"a": ["s3://b"]}


@pytest.mark.parametrize(
    "use",
    [
        lambda: open_storage(f"nope://me:{SECRET}@host/a"),
        lambda: open_storage(f"s3://key:{SECRET}/x@bucket/a"),
        lambda: open_storage(f"file://me:{SECRET}@host/a"),
        lambda: open_storage(f"s3://key:{SECRET}@bucket/\0"),
        lambda: open_storage(f"s3://key:{SECRET}@bucket/a?nope=1").exists(),
        lambda: open_storage(f"gs://key:{SECRET}@bucket/a").exists(),
        lambda: RunConfig(storage_path=f"s3://key:{SECRET}@b".encode()),  # type: ignore[arg-type]
        lambda: RunConfig(storage_path=f"s3://key:{SECRET}@b", local_dir=f"s3://key:{SECRET}@b"),
        lambda: Checkpoint(f"s3://key:{SECRET}@b/a", uri=f"s3://key:{SECRET}@b/a"),
        lambda: data.read_parquet(f"nope://me:{SECRET}@host/a"),
        lambda: DataParallelTrainer.restore(f"nope://me:{SECRET}@host/a"),
        lambda: tune.Tuner.restore(f"nope://me:{SECRET}@host/a"),
        lambda: lockstep.init(runtime_env={"env_vars": {"KEY": [SECRET]}}),
        lambda: lockstep.init(runtime_env={"env_vars": [f"KEY={SECRET}"]}),
        lambda: lockstep.init(runtime_env=f"KEY={SECRET}"),  # type: ignore[arg-type]
        lambda: RunConfig(worker_runtime_env={"env_vars": {"KEY": SECRET, "OTHER": 1}}),
    ],
)
def test_no_error_shows_a_secret(use: Any) -> None:
    with pytest.raises((ValueError, TypeError, StorageError, AttributeError)) as caught:
        use()
    lines = traceback.TracebackException.from_exception(caught.value).format()
    assert SECRET not in "".join(line for line in lines if not line.startswith("  File"))


def test_no_repr_shows_a_secret() -> None:
    config = RunConfig(
        storage_path=f"s3://key:{SECRET}@bucket/a",
        worker_runtime_env={"env_vars": {"KEY": SECRET}},
    )
    shown = repr(config)
    assert SECRET not in shown
    assert "'KEY': '…'" in shown
    assert SECRET not in repr(runtime.Runtime("local", {"KEY": SECRET}))


class Planted:
    """A trainer's arguments, with secrets wherever lockstep itself knows that they are some."""

    def __init__(self, storage: Path) -> None:
        import pyarrow.fs

        secret_fs = pyarrow.fs.S3FileSystem(
            access_key="key", secret_key=SECRET, session_token=SECRET, region="us-east-1"
        )
        self.arguments: dict[str, Any] = {
            "train_loop_config": {"data": f"s3://key:{SECRET}@bucket/rows", "n": 1},
            "run_config": RunConfig(
                name="planted",
                storage_path=storage,
                worker_runtime_env={"env_vars": {"KEY_OF_WORKERS": SECRET}},
            ),
            "metadata": {
                "on": Checkpoint("bucket/a", secret_fs),
                "from": Checkpoint(f"s3://key:{SECRET}@bucket/b"),
            },
        }


def function(config: dict[str, Any]) -> None:
    assert len(os.environ["KEY_OF_WORKERS"]) == 7
    train.report({"n": config["n"]}, checkpoint=Checkpoint.from_dict({"n": 1}))


def contents(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_no_file_of_a_run_and_no_output_has_a_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = DataParallelTrainer(function, **Planted(tmp_path).arguments).fit()
    files = contents(tmp_path)
    assert {"trainer.pkl", "journal.jsonl", "params.json", "result.json"} <= {
        os.path.basename(name) for name in files
    }
    assert [name for name, content in files.items() if SECRET.encode() in content] == []
    assert SECRET not in "".join(capfd.readouterr())
    assert SECRET not in repr(result)


def test_no_file_of_an_experiment_has_a_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    planted = Planted(tmp_path).arguments
    run_config = planted.pop("run_config")
    tuner = tune.Tuner(
        DataParallelTrainer(function, **planted, run_config=run_config),
        run_config=run_config,
        param_space={"train_loop_config": {"n": 2, "more": f"s3://key:{SECRET}@bucket/more"}},
    )
    assert tuner.fit().num_errors == 0
    files = contents(tmp_path)
    assert [name for name, content in files.items() if SECRET.encode() in content] == []
    assert SECRET not in "".join(capfd.readouterr())


def test_a_restore_takes_variables_from_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_func() -> None:
        if train.get_context().get_metadata() or not Path(tmp_path, "again").exists():
            raise RuntimeError("the first time")
        train.report({"seen": os.environ["KEY_OF_WORKERS"]})

    variables = {"env_vars": {"KEY_OF_WORKERS": SECRET}}
    error = failure(train_func, workers=1, worker_runtime_env=variables)
    assert error.result is not None
    (tmp_path / "again").touch()
    with pytest.raises(ValueError, match=r"set KEY_OF_WORKERS in .*; give run_config=… to restore"):
        DataParallelTrainer.restore(error.result.path)
    monkeypatch.setenv("KEY_OF_WORKERS", "another")
    assert DataParallelTrainer.restore(error.result.path).fit().metrics["seen"] == "another"
    given = RunConfig(verbose=0, worker_runtime_env={"env_vars": {"KEY_OF_WORKERS": "given"}})
    again = DataParallelTrainer.restore(error.result.path, run_config=given).fit()
    assert again.metrics["seen"] == "given"


def test_a_kept_filesystem_has_no_keys(tmp_path: Path) -> None:
    metadata = Planted(tmp_path).arguments["metadata"]
    # Not loaded: without keys, Arrow looks for them on the network.
    reduced = reduce_without_secrets(metadata["on"].filesystem)
    assert reduced is not None
    (arguments,) = reduced[1]
    assert (arguments["access_key"], arguments["secret_key"]) == (None, None)
    assert arguments["region"] == "us-east-1"
    kept = pickle.loads(pickle_each({"from": metadata["from"]}, None)["from"])
    assert (kept.uri, kept.path) == ("s3://bucket/b", "bucket/b")
    assert kept.storage._remote.uri == "s3://bucket/b"


PRIVATE = ("journal.jsonl", "trainer.pkl", "params.json", "result.json", "progress.csv")


@pytest.mark.parametrize("shared", [False, True])
def test_files_are_for_their_owner_unless_the_directory_is_shared(
    tmp_path: Path, shared: bool
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    storage.chmod(0o2750 if shared else 0o755)
    result = fit(
        lambda: train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"x": 1})),
        workers=1,
        storage_path=storage,
    )
    assert result.checkpoint is not None
    run = Path(result.path)
    manifest = Path(str(result.checkpoint.path), ".lockstep_checkpoint.json")
    for path in (*(run / name for name in PRIVATE), manifest, run / "logs" / "rank_0.log"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o640 if shared else 0o600), f"{path.name}: {mode:o}"


def test_files_of_an_experiment_are_for_their_owner(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        tune.report({"a": 1})

    tune.Tuner(train_func, run_config=RunConfig(name="n", storage_path=tmp_path, verbose=0)).fit()
    found = [path for path in (tmp_path / "n").rglob("*") if path.is_file()]
    assert {"experiment.jsonl", "tuner.pkl", "journal.jsonl"} <= {path.name for path in found}
    assert [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_an_uncaught_error_prints_no_secret(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os
        from lockstep.train import DataParallelTrainer, RunConfig
        uri = f"s3://key:{os.environ['THE_KEY']}@bucket/a?nope=1"
        DataParallelTrainer(print, run_config=RunConfig(storage_path=uri)).fit()
        """,
        environment={"THE_KEY": SECRET},
        check=False,
    )
    assert done.returncode != 0
    assert "nope" in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_a_trainer_without_secrets_is_kept_as_it_is() -> None:
    config = {"url": "https://host/a", "path": Path("/a")}
    made = trainer(print, config=config, workers=1)
    assert made.train_loop_config == config
