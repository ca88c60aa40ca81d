"""Labels on pictures: what is written where, that it can be read, and what is too small for it."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.errors import ModelError, ShapeError
from glnn.images.drawing import draw_labels

pytest.importorskip("PIL")
CAT = [("tabby cat", 0.8123), ("lynx", 0.1), ("fire screen", 0.05)]


def flat(height: int, width: int, grey: int = 128) -> NDArray[np.uint8]:
    return np.full((height, width, 3), grey, np.uint8)


def changed(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> tuple[int, int]:
    """How far down and to the right anything changed."""
    rows, columns = np.nonzero((before != after).any(2))
    return (int(rows.max()) + 1, int(columns.max()) + 1) if len(rows) else (0, 0)


def ink(drawn: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where letters are, on a picture of one grey."""
    found: NDArray[np.bool_] = drawn[:, :, 0] > 180
    return found


def luminance(grey: float) -> float:
    """Relative luminance as WCAG 2 defines it, of sRGB."""
    part = grey / 255
    return float(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)


def test_the_corner_alone_is_written_on() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (240, 320, 3)).astype(np.uint8)
    before = picture.copy()
    drawn = draw_labels(picture, CAT)
    assert (drawn.shape, drawn.dtype) == (picture.shape, np.uint8)
    assert np.array_equal(picture, before) and not np.shares_memory(drawn, picture)
    bottom, right = changed(picture, drawn)
    assert 3 * 9 <= bottom <= 120 and 60 <= right < 320
    assert np.array_equal(drawn[bottom:], picture[bottom:])
    assert np.array_equal(drawn[:, right:], picture[:, right:])


@pytest.mark.parametrize("grey", [0, 90, 128, 170, 255])
def test_letters_stand_out_on_any_background(grey: int) -> None:
    picture = flat(200, 300, grey)
    drawn = draw_labels(picture, CAT)
    bottom, right = changed(picture, drawn)
    panel = drawn[:bottom, :right, 0]
    letters = panel > 180  # but for their edges
    light, dark = (luminance(float(np.median(panel[where]))) for where in (letters, ~letters))
    assert (light + 0.05) / (dark + 0.05) >= 7  # WCAG's AAA for text of any size
    assert 0.02 < letters.mean() < 0.5  # and no block of white


def test_each_line_is_there_and_says_something_else() -> None:
    picture = flat(200, 300)
    bottoms = [changed(picture, draw_labels(picture, CAT[:n]))[0] for n in (1, 2, 3)]
    step = bottoms[1] - bottoms[0]
    assert step == bottoms[2] - bottoms[1] >= 9
    top = (bottoms[0] - step) // 2 + step  # of the second line
    other = [CAT[0], ("lynx", 0.2), CAT[2]]
    rows = np.nonzero((draw_labels(picture, CAT) != draw_labels(picture, other)).any((1, 2)))[0]
    assert top <= rows.min() and rows.max() < top + step


def test_figures_stand_at_the_right_edge_of_the_panel() -> None:
    picture = flat(200, 300)
    some, none = (draw_labels(picture, [("tabby cat", p)]) for p in (0.25, 0.75))
    columns = np.nonzero((some != none).any((0, 2)))[0]
    letters = np.nonzero(ink(draw_labels(picture, [("tabby cat", 0.25)])).any(0))[0]
    assert columns.min() > letters.min() + 40  # behind the label


@pytest.mark.parametrize("size", [(40, 64), (28, 28), (64, 64), (224, 60), (480, 640)])
def test_a_long_label_keeps_within_the_picture(size: tuple[int, int]) -> None:
    picture = flat(*size)
    drawn = draw_labels(picture, [("W" * 300, 0.5), ("i" * 3000, 0.25)])
    assert ink(drawn).any()
    assert not ink(drawn)[:, 0].any() and not ink(drawn)[:, -1].any()  # cut, not clipped
    assert not ink(drawn)[0].any() and not ink(drawn)[-1].any()


def test_an_ellipsis_says_that_a_label_was_cut() -> None:
    picture = flat(100, 200)
    longer = [
        draw_labels(picture, [("a label that " + "goes on and on " * n, 0.5)]) for n in (9, 99)
    ]
    assert np.array_equal(*longer)
    assert not np.array_equal(longer[0], draw_labels(picture, [("a label that", 0.5)]))


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (9, 200), (200, 5), (0, 40)])
def test_no_room_no_letters(size: tuple[int, int]) -> None:
    picture = flat(*size)
    assert np.array_equal(draw_labels(picture, CAT), picture)


def test_no_lines() -> None:
    assert np.array_equal(draw_labels(flat(90, 90), []), flat(90, 90))


def test_more_lines_than_there_is_room_for() -> None:
    picture = flat(100, 200)
    many = draw_labels(picture, [(f"class {i}", 0.01) for i in range(100)])
    assert not ink(many)[-2:].any() and ink(many)[70:].any()


def test_letters_that_the_font_has_not() -> None:
    picture = flat(200, 300)

    def drawn(label: str) -> NDArray[np.uint8]:
        return draw_labels(picture, [(label, 0.5)])

    assert np.array_equal(drawn("Bär, Öl, café"), drawn("Bar, Ol, cafe"))
    assert np.array_equal(drawn("猫 cat кот"), drawn("? cat ???"))
    assert np.array_equal(drawn(" a\tb\n c "), drawn("a b c"))
    assert np.array_equal(drawn("a\x1b[31m"), drawn("a\\x1b[31m"))
    assert np.array_equal(drawn(""), drawn("?"))


@pytest.mark.parametrize("probability", [float("nan"), 0.0, 1.0, 1e-30])
def test_any_probability(probability: float) -> None:
    assert ink(draw_labels(flat(90, 200), [("a", probability)])).any()


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (np.zeros((20, 20), np.uint8), r"uint8 H x W x 3, got uint8 of shape \(20, 20\)"),
        (np.zeros((20, 20, 4), np.uint8), r"got uint8 of shape \(20, 20, 4\)"),
        (np.zeros((20, 20, 3), np.float32), "got float32 of shape"),
    ],
)
def test_what_is_no_picture(picture: NDArray[Any], said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        draw_labels(picture, CAT)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ModelError, match=r"pip install .* \(the extra glnn\[images\]\)"):
        draw_labels(flat(90, 90), CAT)
