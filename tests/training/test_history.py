"""A history as a table, as JSON, as a picture."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from PIL import Image

from glnn.errors import GlnnError, ModelError
from glnn.training.history import History, Row

ROWS = (
    Row(1, 10, 2.5, 0.125, None, None, 0.001, 0.5),
    Row(2, 20, 1.25, 0.5, None, None, 0.0005, 12.25),
)


def test_table_has_a_line_for_each_epoch_and_no_empty_columns() -> None:
    assert str(History(ROWS)).split("\n") == [
        "epoch  step    loss  accuracy  learning rate  seconds",
        "    1    10  2.5000    12.50%          0.001     0.50",
        "    2    20  1.2500    50.00%         0.0005    12.25",
    ]


def test_a_number_that_is_missing_in_one_epoch_only_is_a_dash() -> None:
    row = Row(3, 30, float("nan"), None, 0.25, None, 0.001, 1.0)
    head, *_, last = str(History((*ROWS, row))).split("\n")
    assert "validation loss" in head and "validation accuracy" not in head
    assert last.split() == ["3", "30", "nan", "-", "0.2500", "0.001", "1.00"]


def test_json_is_plain_and_comes_back() -> None:
    history = History(ROWS)
    found = json.loads(json.dumps(history.to_json()))
    assert found[1]["learning_rate"] == 0.0005 and found[0]["validation_loss"] is None
    assert History.from_json(found) == history


@pytest.mark.parametrize(
    "document",
    [None, {}, "text", [1], [{"epoch": 1}], [{**History(ROWS).to_json()[0], "step": 1.5}]],
)
def test_other_json_is_refused(document) -> None:
    with pytest.raises(ModelError):
        History.from_json([document])


def test_columns_and_rows() -> None:
    history = History(ROWS)
    assert history.column("loss") == [2.5, 1.25] and history[-1] is ROWS[1] and len(history) == 2
    with pytest.raises(GlnnError, match="a column must be one of epoch, step, "):
        history.column("los")


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_plot_draws_loss_and_accuracy(tmp_path, suffix) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curve.{suffix}"
    History(ROWS).plot(path)
    if suffix == "png":
        with Image.open(path) as image:
            assert image.width > 1.5 * image.height  # two of them
            assert np.ptp(np.asarray(image.convert("L"))) > 100
    else:
        assert path.stat().st_size > 1000


def test_plot_says_what_is_wrong(tmp_path, monkeypatch) -> None:
    with pytest.raises(GlnnError, match="needs an epoch at least"):
        History().plot(tmp_path / "a.png")
    pytest.importorskip("matplotlib")
    with pytest.raises(GlnnError, match=r"a\.txt: cannot be written: "):
        History(ROWS).plot(tmp_path / "a.txt")
    with pytest.raises(GlnnError, match="cannot be written: No such file"):
        History(ROWS).plot(tmp_path / "none" / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(GlnnError, match=r"pip install 'matplotlib.* \(the extra glnn\[bench\]\)"):
        History(ROWS).plot(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
