"""From strokes to the image that the model knows; the app's Kotlin is compared with the same drawings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.app_assets.handwriting import HABITS, SKELETONS, Writer
from scripts.app_assets.strokes import Preprocessing

point = st.tuples(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.integers(0, 10_000))
drawing = st.lists(st.lists(point, min_size=1, max_size=6), min_size=1, max_size=4)


def test_a_dot_is_a_disc_in_the_middle() -> None:
    image = Preprocessing().image([[(7.0, -3.0, 0)]])[..., 0]
    assert image.shape == (8, 8)
    assert image.dtype == np.float32
    assert image[3:5, 3:5].min() > 0
    assert image.sum() == image[3:5, 3:5].sum()
    # 16 cells of 32 x 32 have their centre within 2.5 of the middle; the image counts them in sixteenths.
    centres = np.arange(32) - 15.5
    assert image.sum() * 16 == np.count_nonzero(centres[:, None] ** 2 + centres**2 <= 2.5**2)


def test_lines_fill_the_square_from_edge_to_edge() -> None:
    preprocessing = Preprocessing(pen=0.6)
    across = preprocessing.image([[(0, 0, 0), (50, 0, 9)]])[..., 0]
    assert (across.max(0) > 0).all()
    assert (across.max(1) > 0).sum() == 2
    np.testing.assert_array_equal(across, preprocessing.image([[(0, 0, 0), (0, 50, 9)]])[..., 0].T)


@given(drawing, st.floats(0.5, 2), st.floats(-100, 100))
def test_pixels_are_shares_and_place_and_size_do_not_matter(strokes: list, scale: float, shift: float) -> None:
    preprocessing = Preprocessing(pen=2.4)  # at 2.5 whole rows of centres lie exactly on the rim of a level line
    image = preprocessing.image(strokes)
    assert ((image >= 0) & (image <= 1)).all()
    assert image.sum() > 0
    np.testing.assert_array_equal(image * 16, np.rint(image * 16))
    moved = preprocessing.image([[(x * 4, y * 4, t) for x, y, t in stroke] for stroke in strokes])
    np.testing.assert_array_equal(moved, image)
    near = preprocessing.image([[(x * scale + shift, y * scale + shift, t) for x, y, t in s] for s in strokes])
    extent = np.ptp(np.array([p[:2] for s in strokes for p in s]), axis=0).max()
    if extent > 1:
        # A centre on the rim of the pen may fall on either side.
        assert np.abs(near - image).sum() * 16 <= 12


@pytest.mark.parametrize("strokes", [[], [[]], [[(0.0, float("nan"), 0)]], [[(float("inf"), 0.0, 0)]]])
def test_what_is_no_drawing_is_refused(strokes: list) -> None:
    with pytest.raises(ValueError, match="at least one point"):
        Preprocessing().image(strokes)


def test_writers_differ_and_repeat_themselves() -> None:
    digits = list(range(10))
    assert Writer(seed=3).write(digits) == Writer(seed=3).write(digits)
    assert Writer(seed=3).write(digits) != Writer(seed=4).write(digits)
    assert set(HABITS) <= set(SKELETONS) == set(digits)
    for strokes in Writer(slant=0.5, turn=0.4).write(digits):
        points = np.array([p for stroke in strokes for p in stroke])
        assert ((points[:, :2] >= 0) & (points[:, :2] <= 600)).all()
        assert (np.diff(points[:, 2]) > 0).all()
