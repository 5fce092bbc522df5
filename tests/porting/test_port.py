from __future__ import annotations

import textwrap

import pytest

from lockstep.porting import port_source


def ported(source: str) -> tuple[str, list[tuple[int, str]]]:
    """The text afterwards, and line and name of each remark; a second time changes nothing."""
    first = port_source(textwrap.dedent(source).encode())
    assert port_source(first.source).source == first.source
    return first.source.decode(), [(remark.line, remark.name) for remark in first.remarks]


def test_names_are_rewritten_and_layout_stays() -> None:
    text, remarks = ported(
        '''
        """A script."""
        import os, ray  # all of it
        import ray.train.torch
        from ray import train, tune
        from ray.air import (
            session,  # reports
            ScalingConfig,
        )
        import ray.tune as rt


        def f(ray_count, obj) -> ray.train.Result:
            ray.train.torch.prepare_model(None)   # three   spaces
            obj.ray.x = obj(ray=1)
            return rt.grid_search([ray_count])


        def other():
            ray = 5
            return ray
        '''
    )
    assert text == textwrap.dedent(
        '''
        """A script."""
        import os, lockstep  # all of it
        import lockstep.train.torch
        from lockstep import train, tune
        from lockstep.air import (
            session,  # reports
            ScalingConfig,
        )
        import lockstep.tune as rt


        def f(ray_count, obj) -> lockstep.train.Result:
            lockstep.train.torch.prepare_model(None)   # three   spaces
            obj.ray.x = obj(ray=1)
            return rt.grid_search([ray_count])


        def other():
            ray = 5
            return ray
        '''
    )
    assert remarks == []


def test_old_paths_become_today_s() -> None:
    text, remarks = ported(
        """
        from ray.air.config import RunConfig, ScalingConfig as SC
        from ray.tune.tuner import Tuner, TuneConfig
        from ray.tune.integration.mlflow import MLflowLoggerCallback
        """
    )
    assert text == textwrap.dedent(
        """
        from lockstep.train import RunConfig, ScalingConfig as SC
        from lockstep.tune import Tuner, TuneConfig
        from lockstep.air.integrations.mlflow import MLflowLoggerCallback
        """
    )
    assert remarks == []


def test_what_lockstep_does_not_have_stays_and_is_listed() -> None:
    text, remarks = ported(
        """
        import ray
        import ray.serve
        from ray.train.lightning import LightningTrainer, RayDDPStrategy

        ray.init()
        ray.serve.run(ray.train.get_context())
        """
    )
    assert text == textwrap.dedent(
        """
        import lockstep
        import ray
        import ray.serve
        from lockstep.train.lightning import RayDDPStrategy
        from ray.train.lightning import LightningTrainer

        lockstep.init()
        ray.serve.run(lockstep.train.get_context())
        """
    )
    assert remarks == [
        (3, "ray.serve"),
        (4, "ray.train.lightning.LightningTrainer"),
        (7, "ray.serve"),
    ]


def test_remarks_say_what_to_do() -> None:
    source = textwrap.dedent(
        """
        import os
        import ray
        from ray.train import ScalingConfig, Trainer

        os.environ["RAY_TRAIN_V2_ENABLED"] = "1"

        @ray.remote
        def task():
            return ray.train.RunConfig(nam="x"), ScalingConfig(workers=2)
        """
    )
    ported = port_source(source.encode())
    said = {remark.name: (remark.line, remark.reason) for remark in ported.remarks}
    assert b"@lockstep.remote" in ported.source
    assert said.pop("ray.train.Trainer")[1].startswith("Ray has removed it; use lockstep.train.to")
    assert said == {
        "RAY_TRAIN_V2_ENABLED": (6, "lockstep does not read this variable"),
        "ray.remote": (
            8,
            "needs Ray Core: install Ray, and call lockstep.init(engine='ray') before it",
        ),
        "RunConfig(nam=…)": (10, "lockstep has no such argument"),
        "ScalingConfig(workers=…)": (10, "lockstep has no such argument"),
    }


@pytest.mark.parametrize(
    "source",
    [
        "x = 'array'\n",
        "from . import ray\nray.init()\n",
        "def f(ray):\n    return ray.init()\n",
        "",
    ],
)
def test_other_files_stay_as_they_are(source: str) -> None:
    assert port_source(source.encode()) == (source.encode(), [])


def test_line_ends_and_encodings_stay() -> None:
    source = "# -*- coding: latin-1 -*-\r\nimport ray  # é\r\nray.init()\r\n".encode("latin-1")
    assert port_source(source).source == source.replace(b"ray", b"lockstep")


def test_what_is_no_python_is_refused() -> None:
    with pytest.raises(ValueError, match=r"line 1: "):
        port_source(b"import ray as\n")
