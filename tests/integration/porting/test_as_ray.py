"""Scripts that import ``ray``, as they are, with lockstep's names."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.repository import SRC


def run_as_ray(directory: Path, source: str, **files: str) -> str:
    """What a script prints whose ``ray`` is lockstep."""
    for name, text in {"script": source, **files}.items():
        (directory / f"{name}.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-m", "lockstep", "run", "script.py"],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(SRC),
            "LOCKSTEP_STORAGE": str(directory / "results"),
            "LOCKSTEP_WARM": "0",
        },
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_names_are_lockstep_s_in_driver_and_workers(tmp_path: Path) -> None:
    out = run_as_ray(
        tmp_path,
        """
        import ray
        from ray import tune
        from ray.air import session, RunConfig, ScalingConfig
        from ray.train.data_parallel_trainer import DataParallelTrainer
        import sibling
        import lockstep

        ray.init(num_cpus=2)
        data = ray.put([1, 2, 3])

        def function(config):
            import ray.train
            from ray.util import get_node_ip_address

            total = sum(ray.get(config["data"]))
            same = get_node_ip_address() == ray.nodes()[0]["NodeManagerAddress"]
            sibling.report(total=total, same=same)

        trainer = DataParallelTrainer(
            function,
            train_loop_config={"data": data},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(verbose=0),
        )
        result = trainer.fit()
        print(result.metrics["total"], result.metrics["same"], type(result) is ray.train.Result)
        print(ray.train is lockstep.train, session.report is lockstep.train.report)
        print(ray.cluster_resources()["CPU"], ray.__version__)
        """,
        sibling="""
        import ray

        def report(**metrics):
            ray.train.report(metrics)
        """,
    )
    assert out.splitlines() == ["6 True True", "True True", "2.0 2.60.0"]


def test_what_is_not_here_says_so(tmp_path: Path) -> None:
    out = run_as_ray(
        tmp_path,
        """
        import ray

        def said(code):
            try:
                exec(code)
            except (ImportError, AttributeError) as error:
                print(f"{type(error).__name__}: {error}")

        said("ray.remote")
        said("from ray import remote")
        said("import ray.serve")
        said("from ray.util.queue import Queue")
        said("from ray.train.lightning import LightningTrainer")
        said("import ray.train.nothing")
        said("ray.nothing")
        """,
    )
    kinds = [line.partition(":")[0] for line in out.splitlines()]
    texts = [line.partition(": ")[2] for line in out.splitlines()]
    own = "it belongs to Ray itself, and Ray is not installed. After pip install"
    assert kinds == [
        "AttributeError",
        *["ImportError"] * 4,
        "ModuleNotFoundError",
        "AttributeError",
    ]
    assert texts[0].startswith(f"module 'ray' has no attribute 'remote': {own}")
    assert texts[1].startswith(f"ray.remote does not exist: {own}")
    assert texts[2].startswith(f"ray.serve cannot be imported: {own}")
    assert texts[3].startswith(f"ray.util.queue cannot be imported: {own}")
    assert texts[4].startswith("lockstep.train.lightning.LightningTrainer does not exist: Ray has")
    assert texts[5].startswith("No module named 'ray.train.nothing': lockstep has no lockstep.trai")
    assert texts[6] == "module 'ray' has no attribute 'nothing'"


def test_libraries_that_look_for_ray_do_not_find_lockstep(tmp_path: Path) -> None:
    """Until the user's own code imports it, only what is installed counts."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "library.py").write_text(
        "import importlib.util\ndef found(): return importlib.util.find_spec('ray') is not None\n"
    )
    out = run_as_ray(
        tmp_path,
        """
        import sys
        sys.path.insert(0, "site-packages")
        import library
        print(library.found(), "ray" in sys.modules)
        import ray
        print(library.found())
        """,
    )
    assert out.splitlines() == ["False False", "True"]


def test_one_note_about_old_spellings(tmp_path: Path) -> None:
    out = run_as_ray(
        tmp_path,
        """
        import warnings
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            from ray.air import session
            from ray.air.config import RunConfig
        for each in said:
            print(each.lineno, each.message)
        """,
    )
    assert out == (
        "5 ray.air is an old spelling; today it is lockstep.train (ray.train). It keeps working; "
        "lockstep port rewrites it.\n"
    )
