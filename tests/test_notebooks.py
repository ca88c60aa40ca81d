"""Notebooks run in a kernel of their own, are stored without outputs, and show progress."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import glnn
from tests.packages import skip

try:
    import ipykernel  # noqa: F401  # nbclient starts it
    from nbclient import NotebookClient
    from nbformat import v4
except ModuleNotFoundError as missing:
    skip(missing, "pip install '.[notebooks]'")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
PRINTS = "print('over')"
TRAINING = """\
import numpy as np
from glnn.layers import Linear, ReLU
from glnn.model import Model
from glnn.training import SGD, CrossEntropyLoss, Trainer

x = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
model = Model.sequential([Linear(8, 4, seed=1), ReLU(), Linear(4, 2, seed=2)], (8,))
trainer = Trainer(model, CrossEntropyLoss(), SGD(lr=0.1), backend="cpu")
trainer.fit(x, (x[:, 0] > 0).astype(int), epochs=2, batch_size=20, progress={shown})
"""
LOADING = """\
import glnn
from glnn.core import progress_bar
from time import sleep

progress_bar.DELAY = 0.0
glnn.progress({shown})
with progress_bar.report_work("planning", "net", total=3) as work:
    for _ in work.counted(range(3)):
        sleep(0.2)
"""


class Client(NotebookClient):
    """Runs a notebook, and keeps all texts that it displayed meanwhile, in order."""

    def __init__(self, notebook: Any, folder: Path) -> None:
        resources = {"metadata": {"path": str(folder)}}
        super().__init__(notebook, kernel_name="python3", timeout=200, resources=resources)
        self.shown: list[tuple[int, str, str]] = []

    def process_message(self, message: Any, cell: Any, place: int) -> Any:
        if message["msg_type"] in ("display_data", "update_display_data"):
            data = message["content"]["data"]
            self.shown.append((place, data["text/plain"], data.get("text/html", "")))
        return super().process_message(message, cell, place)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel finds the glnn that is tested, and settings of no user."""
    monkeypatch.setenv("PYTHONPATH", str(Path(glnn.__file__).parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def texts(cell: Any) -> str:
    """Return what a cell printed, and the HTML or the text that it shows."""
    found = [one.get("text", "") for one in cell.get("outputs", [])]
    for one in cell.get("outputs", []):
        data = one.get("data", {})
        found.append(data.get("text/html", data.get("text/plain", "")))
    return "".join(found)


def run(path: Path, folder: Path) -> tuple[Client, list[str]]:
    """Run a notebook in `folder`; return the client, and what each of its programs said."""
    notebook = v4.reads(path.read_text("utf-8"))
    client = Client(notebook, folder)
    client.execute()
    return client, [texts(cell) for cell in notebook.cells if cell.cell_type == "code"]


def test_a_picture_is_classified_and_the_network_looked_at(tmp_path: Path) -> None:
    (path,) = (one for one in NOTEBOOKS if "look" in one.stem)
    _, (_, summary, scores, plan, times) = run(path, tmp_path)
    assert "61,706 parameters" in summary and summary.count("<tr>") == 14
    read, label = re.findall(r"read as (\d) with 100.0%, the label says (\d)", scores)[0]
    assert read == label
    assert "<caption>lenet on compute: " in plan
    assert "ms a run" in times and times.count("<tr>") == plan.count("<tr>")


def test_a_small_network_is_trained(tmp_path: Path) -> None:
    (path,) = (one for one in NOTEBOOKS if "train" in one.stem)
    client, (summary, history, right) = run(path, tmp_path)
    assert "50,890 parameters" in summary
    assert history.count("<tr>") == 1 + 12
    assert float(right.split("%")[0]) > 90
    bars = [html for _, _, html in client.shown if "epoch" in html]
    assert any("epoch 12/12" in html for html in bars)


def displayed(code: str, folder: Path) -> tuple[list[tuple[int, str, str]], Any]:
    """Return all that a cell displayed, as text and as HTML, and what is there at the end."""
    cells = [v4.new_code_cell(code), v4.new_code_cell(PRINTS)]
    notebook = v4.new_notebook(cells=cells)
    client = Client(notebook, folder)
    client.execute()
    return client.shown, notebook.cells


@pytest.mark.parametrize(
    ("code", "says"),
    [(TRAINING, ["epoch 1/2", "epoch 2/2"]), (LOADING, ["planning net", "2 of 3"])],
)
def test_bars_are_shown_below_the_cell_and_are_gone_at_the_end(
    code: str, says: list[str], tmp_path: Path
) -> None:
    shown, (cell, last) = displayed(code.format(shown=True), tmp_path)
    assert {place for place, _, _ in shown} == {0}
    for text in says:
        assert any(text in plain and text in html for _, plain, html in shown), text
    bars = [one.data for one in cell.outputs if one.output_type == "display_data"]
    assert bars == [{"text/plain": ""}]
    assert texts(last) == "over\n"


def test_a_bar_is_shown_unless_it_is_not_wanted(tmp_path: Path) -> None:
    shown, _ = displayed(TRAINING.format(shown=None), tmp_path)
    assert any("epoch 2/2" in plain for _, plain, _ in shown)
    for code in (TRAINING, LOADING):
        assert displayed(code.format(shown=False), tmp_path)[0] == []


def test_commands_have_bars(tmp_path: Path) -> None:
    command = "-m glnn train lenet-untrained digits --epochs 2 --backend cpu --output net.json"
    _, (cell, _) = displayed(f"!{sys.executable} {command}", tmp_path)
    assert (tmp_path / "net.json").exists(), texts(cell)
    assert "epoch 2/2" in texts(cell)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_they_are_stored_without_outputs(path: Path) -> None:
    document = json.loads(path.read_text("utf-8"))
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert document["metadata"]["kernelspec"]["name"] == "python3"
    assert path.stat().st_size < 10_000
    assert str(sys.prefix) not in path.read_text("utf-8")
