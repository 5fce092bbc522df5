"""Which code of a page leads to which entry of the API reference."""

from __future__ import annotations

from scripts import api_links

KNOWN = api_links.targets(
    [
        ("lockstep.train.RunConfig", "class"),
        ("lockstep.train.report", "function"),
        ("lockstep.train.torch.prepare_model", "function"),
        ("lockstep.train.Result", "class"),
        ("lockstep.train.Result.goodput", "attribute"),
        ("lockstep.train.xgboost.RayTrainReportCallback", "class"),
        ("lockstep.train.lightgbm.RayTrainReportCallback", "class"),
    ]
)


def named(text: str) -> str | None:
    return api_links.named_in(text, KNOWN)


def test_names_lead_to_what_they_mean() -> None:
    assert named("RunConfig") == "lockstep.train.RunConfig"
    assert named("RunConfig(name=…, resume='auto')") == "lockstep.train.RunConfig"
    assert named("train.report") == "lockstep.train.report"
    assert named("lockstep.train.report()") == "lockstep.train.report"
    assert named("prepare_model") == "lockstep.train.torch.prepare_model"
    assert named("Result.goodput") == "lockstep.train.Result.goodput"


def test_what_is_not_clear_is_not_linked() -> None:
    assert named("report") is None  # a plain word
    assert named("goodput") is None
    assert named("RayTrainReportCallback") is None  # there are two
    assert (
        named("xgboost.RayTrainReportCallback") == "lockstep.train.xgboost.RayTrainReportCallback"
    )
    assert named("stop={'loss': 1}") is None
    assert named("RunConfig and more") is None
