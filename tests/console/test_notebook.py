from __future__ import annotations

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.repository import SRC

SETUP = """
import sys
sys.path.insert(0, {src!r})
from lockstep.console import RunStatus, make_display
def status(state="running", **more):
    values = dict(attempt=1, elapsed_s=0.0, reports=0, metrics={{}}, checkpoint=None,
                  num_workers=2, name="my_run", path="/results/exp/<my_run>")
    return RunStatus(state=state, **{{**values, **more}})
"""


@pytest.fixture
def run_cell(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    # The user's own Jupyter settings stay out of the test, and its files out of their home.
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))

    def run(source: str, *, raises: bool = False) -> list[Any]:
        v4: Any = nbformat.v4
        sources = SETUP.format(src=str(SRC)), source
        notebook = v4.new_notebook(cells=[v4.new_code_cell(text) for text in sources])
        NotebookClient(notebook, timeout=150, kernel_name="python3", allow_errors=raises).execute()
        outputs: list[Any] = notebook.cells[1].outputs
        return outputs

    return run


def printed(outputs: list[Any], name: str) -> str:
    streams = (output for output in outputs if output.output_type == "stream")
    return "".join(output.text for output in streams if output.name == name)


def test_the_table_is_updated_in_place_and_lines_print_as_usual(run_cell: Any) -> None:
    outputs = run_cell(
        """
display = make_display(1)
assert type(display).__name__ == "NotebookDisplay"
updates, now = 0, 0.0
display._clock = lambda: now
display.start(status("starting"))
from IPython.display import DisplayHandle
publish = DisplayHandle.update
def counted(self, *args, **kwargs):
    global updates
    updates += 1
    publish(self, *args, **kwargs)
DisplayHandle.update = counted
for n in range(2000):
    now += 0.001
    display.update(status(reports=n, metrics={"loss": 1 / (n + 1)}))
    display.refresh()
assert updates <= 8, updates
import threading
thread = threading.Thread(target=display.output, args=((0, 1), 2, "from the workers"))
thread.start()
thread.join()
display.message("look out", "warning")
display.finish(status("finished", reports=2000, metrics={"loss": 0.0625, "<b>": "&"}, elapsed_s=4,
                      checkpoint="checkpoint_000003"))
display.finish(status("failed"))
"""
    )
    tables = [output for output in outputs if output.output_type == "display_data"]
    assert len(tables) == 1
    text, page = tables[0].data["text/plain"], tables[0].data["text/html"]
    assert text.splitlines() == [
        "my_run",
        "finished · 4.0s · 2,000 reports · 2 workers",
        "  loss        0.0625",
        "  <b>         &",
        "  checkpoint  checkpoint_000003",
        "  run         /results/exp/<my_run>",
    ]
    assert "&lt;b&gt;" in page
    assert "/results/exp/&lt;my_run&gt;" in page
    assert "finished" in page
    assert printed(outputs, "stdout") == "[all ranks] from the workers\n"
    assert printed(outputs, "stderr") == "look out\n"


def test_an_interactive_function_gets_plain_lines(run_cell: Any) -> None:
    outputs = run_cell(
        """
display = make_display(1, interactive_function=True)
display.start(status("starting", num_workers=0))
"""
    )
    assert [output.output_type for output in outputs] == ["stream"]
    assert "run directory /results/exp/<my_run>" in outputs[0].text


def test_an_interrupted_run_shows_its_sentence_and_no_traceback(run_cell: Any) -> None:
    (error,) = run_cell(
        """
from lockstep.errors import TrainingInterrupted
def fit():
    raise TrainingInterrupted("Interrupted: 3 report(s) are kept.")
fit()
""",
        raises=True,
    )
    assert (error.output_type, error.ename) == ("error", "TrainingInterrupted")
    assert error.traceback == ["Interrupted: 3 report(s) are kept."]
