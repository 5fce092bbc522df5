"""What has changed in a training function's source since its run was started."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lockstep.train.function.sources import (
    changed_definitions,
    differing_sources,
    name_of,
    register_sources,
    sources_of,
    used_sources,
)

TEXT = """
import math
SCALE = 2
UNUSED = 3

def helper(x):
    return SCALE * x

class Model:
    def forward(self):
        return math.pi

def train_func(config):
    model = Model()
    return helper(model.forward())

def outer():
    learning_rate = 0.1
    def train_func(config):
        return helper(1)
    return train_func

class Callable:
    def __call__(self):
        return helper(1)

if __name__ == "__main__":
    print("driver")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    file = tmp_path / "a_script.py"
    file.write_text(TEXT)
    module = ModuleType("a_script")
    module.__file__ = str(file)
    exec(compile(TEXT, file, "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "a_script", module)
    return file, module


EDITS = [
    ("# a comment\n", "", []),
    ('print("driver")', 'print("another driver")', []),
    ("UNUSED = 3", "UNUSED = 4", []),
    ("SCALE = 2", "SCALE = 3", ["SCALE"]),
    ("return SCALE * x", "return SCALE * x + 1", ["helper"]),
    ("return math.pi", "return math.e", ["Model"]),
    ("model = Model()\n", "model = Model()\n    print(model)\n", ["train_func"]),
    ("def helper(x)", "def help(x)", ["helper"]),
    ("def train_func(config):\n    model", "def train_func(config)\n    model", None),
]


@pytest.mark.parametrize(("old", "new", "changed"), EDITS)
def test_only_what_the_function_uses_counts(
    script: tuple[Path, Any], old: str, new: str, changed: list[str] | None
) -> None:
    file, module = script
    kept = used_sources(sources_of(module.train_func), module.train_func)
    lines = kept[str(file)].splitlines()
    assert all(line in ("", own) for line, own in zip(lines, TEXT.splitlines(), strict=False))
    assert "return SCALE * x" in kept[str(file)]
    assert changed_definitions(kept, module.train_func) == []
    assert differing_sources(kept) == {}
    file.write_text("\n" + TEXT.replace(old, new))
    found = changed_definitions(kept, module.train_func)
    assert found if changed is None else found == changed
    assert differing_sources(kept) == kept


def test_what_the_function_does_not_use_is_not_kept(script: tuple[Path, Any]) -> None:
    file, module = script
    texts = sources_of(module.train_func)
    assert texts == {str(file): TEXT}
    kept = used_sources(texts, module.train_func)[str(file)]
    for text in ("UNUSED", "learning_rate", "Callable", "driver"):
        assert text not in kept
    assert "learning_rate" not in used_sources(texts, module.outer())[str(file)]


def test_of_what_is_around_a_nested_function_nothing_counts(script: tuple[Path, Any]) -> None:
    file, module = script
    function = module.outer()
    kept = used_sources(sources_of(function), function)
    file.write_text(TEXT.replace("learning_rate = 0.1", "learning_rate = 0.2"))
    assert changed_definitions(kept, function) == []
    file.write_text(TEXT.replace("return helper(1)", "return helper(2)", 1))
    assert changed_definitions(kept, function) == ["train_func"]


def test_objects_that_are_called(script: tuple[Path, Any]) -> None:
    file, module = script
    function = module.Callable()
    kept = used_sources(sources_of(function), function)
    file.write_text(TEXT.replace("SCALE = 2", "SCALE = 3"))
    assert changed_definitions(kept, module.Callable()) == ["SCALE"]


def test_a_file_that_is_not_here_does_not_count(script: tuple[Path, Any]) -> None:
    file, module = script
    kept = sources_of(module.train_func)
    file.unlink()
    assert changed_definitions(kept, module.train_func) == []
    assert differing_sources(kept) == kept


def test_installed_functions_are_not_kept() -> None:
    import json

    assert sources_of(json.loads) == {}
    assert sources_of(print) == {}


def test_names() -> None:
    assert name_of(test_names) == "test_names"
    assert name_of(lambda: None) is None


def test_registered_lines_are_shown_instead_of_the_files(script: tuple[Path, Any]) -> None:
    import linecache

    file, _ = script
    register_sources({str(file): "one\ntwo\n"})
    linecache.checkcache(str(file))
    assert linecache.getline(str(file), 2) == "two\n"
    del linecache.cache[str(file)]


def test_indented_definitions_and_names_of_the_drivers_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import sys
if sys.platform:
    password = "secret"
    def helper(x):
        factor = 2

        return factor * x
try:
    from missing import other
except ImportError:
    other = None

def train_func(config):
    for step in range(3):
        print(helper(step), other, config)

class Class:
    def step(self):
        return helper(1)

if __name__ == "a_script":
    which = 1
    config = {"token": "secret"}
    for step in range(1):
        pass
"""
    file = tmp_path / "a_script.py"
    file.write_text(text)
    module: Any = ModuleType("a_script")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "a_script", module)
    exec(compile(text, file, "exec"), vars(module))
    for function in (module.train_func, module.Class):
        file.write_text(text)
        kept = used_sources(sources_of(function), function)
        assert "secret" not in kept[str(file)]
        assert changed_definitions(kept, function) == []
        file.write_text(text.replace('"token": "secret"', "").replace("range(1)", "range(2)"))
        assert changed_definitions(kept, function) == []
        file.write_text(text.replace("factor = 2", "factor = 3"))
        assert changed_definitions(kept, function) == ["helper"]
    assert name_of(module.Class) == "Class"
