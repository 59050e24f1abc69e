"""Pictures: what is drawn is what was given, on odd shapes and with odd names, whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError
from segmenter.evaluation import figures
from segmenter.evaluation.drawing import save_figure, scale_bar
from segmenter.evaluation.figures import Example, confusion_panel, legend_strip, scene_panels
from segmenter.evaluation.layers import WRONG, confident, errors, stretch_picture
from segmenter.evaluation.learning_curves import learning_curves
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.colours import default_colours, far_from
from segmenter.grid.labels import IGNORE, ClassMap, LandCoverClass
from segmenter.grid.sight import APART, SIGHTS, lab_of, nearest
from segmenter.grid.stretch import Stretch
from tests.helpers.refusals import refused

ODD_NAMES = ("land $x$ and $y^2", "<b>road</b> & more", "_hidden", "水域", "two  spaces", "50 % \\frac{1}{2}")
COLOURS = ((200, 16, 16), (16, 200, 16), (16, 16, 200), (200, 200, 16), (16, 200, 200), (200, 16, 200))


@pytest.fixture
def classes() -> ClassMap:
    """Classes whose names would be markup, invisible or without a glyph if they were not plain text."""
    triples = zip(ODD_NAMES, COLOURS, range(6), strict=True)
    return ClassMap(tuple(LandCoverClass(*triple) for triple in triples))


def _picture(path: Path) -> NDArray[np.uint8]:
    """(H, W, 3) of a PNG."""
    return (imread(path)[..., :3] * 255).round().astype(np.uint8)


def _draw(
    ids_HW: NDArray[np.uint8], classes: ClassMap, path: Path, title: str = "", side: int = 2000
) -> None:
    """A map of class ids beside an image of zeros, as a PNG."""
    image = np.zeros((*ids_HW.shape, 1), np.uint8)
    save_figure(scene_panels(_example(image, None, ids_HW, title), classes, side), path)


def _example(
    image: np.ndarray, label: Any, map_HW: NDArray[np.uint8], title: str = "", **more: Any
) -> Example:
    return Example(title, image, map_HW != IGNORE, label, map_HW)


def _pixels_of(picture: NDArray[np.uint8], colour: tuple[int, int, int]) -> int:
    return int((picture == colour).all(axis=2).sum())


@pytest.mark.parametrize(("dtype", "bands"), [(np.uint8, 3), (np.uint16, 1), (np.int16, 2), (np.float32, 7)])
def test_any_number_type_and_band_count_is_drawn(
    dtype: type, bands: int, classes: ClassMap, tmp_path: Path, rng: np.random.Generator
) -> None:
    image = rng.integers(0, 120, (31, 23, bands)).astype(dtype)
    ids = rng.integers(0, 6, (31, 23)).astype(np.uint8)
    picture = stretch_picture(image, np.ones((31, 23), bool))
    assert picture.shape == (31, 23, 3)
    assert picture.min() == 0
    assert picture.max() == 255
    if bands == 3 and dtype == np.uint8:  # drawing takes a while: once is enough
        save_figure(scene_panels(_example(image, ids, ids, "title $x$"), classes), tmp_path / "p.png")
        assert [file.name for file in tmp_path.iterdir()] == ["p.png"]


def test_the_stretch_leaves_out_what_is_not_valid() -> None:
    image = np.linspace(1000, 2000, 101 * 203, dtype=np.float32).reshape(101, 203, 1)
    image[0, 0], image[0, 1], image[0, 2] = np.nan, np.inf, -9999
    valid = np.ones((101, 203), bool)
    valid[0, 2] = False
    picture = stretch_picture(image, valid)
    grey = picture[1:, :, 0].astype(int)
    assert (np.diff(grey.reshape(-1)) >= 0).all()
    assert grey.min() == 0
    assert grey.max() == 255
    # 2 % at either end are clipped, the middle is linear.
    assert 0.03 < np.isin(grey, (0, 255)).mean() < 0.05
    assert abs(int(picture[50, 101, 0]) - 127) <= 2
    hatch = {tuple(colour) for colour in picture[0, :3].tolist()}
    assert all(red == green == blue for red, green, blue in hatch)


def test_a_part_is_stretched_as_its_whole(rng: np.random.Generator) -> None:
    whole = rng.integers(0, 4000, (31, 23, 4), np.uint16), rng.random((31, 23)) < 0.9
    part = tuple(each[5:9, 7:10] for each in whole)
    assert (stretch_picture(*part, Stretch.of(*whole)) == stretch_picture(*whole)[5:9, 7:10])[part[1]].all()
    nothing = whole[0], np.zeros((31, 23), bool)
    assert (stretch_picture(*part, Stretch.of(*nothing)) == stretch_picture(*part)).all(), (
        "which has no pixels to go by"
    )


def test_what_is_empty_or_without_contrast_is_drawn(
    make_classes: Callable[..., ClassMap], tmp_path: Path
) -> None:
    empty = stretch_picture(np.full((9, 11, 3), np.nan, np.float32), np.ones((9, 11), bool))
    assert len(np.unique(empty)) == 2  # hatched
    assert np.unique(stretch_picture(np.full((9, 11, 3), 7, np.uint16), np.ones((9, 11), bool))).tolist() == [
        127
    ]

    save_figure(confusion_panel(ConfusionMatrix(make_classes(3))), tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_each_panel_shows_its_classes_in_their_colours(classes: ClassMap, tmp_path: Path) -> None:
    label = np.zeros((101, 203), np.uint8)
    prediction = np.ones((101, 203), np.uint8)
    prediction[:, :50] = IGNORE
    panels = scene_panels(_example(np.zeros((101, 203, 3), np.uint8), label, prediction), classes)
    save_figure(panels, tmp_path / "p.png")
    picture = _picture(tmp_path / "p.png")
    zoom = 2  # 203 px are too few for captions and legend
    legend = 30 * 30
    assert 0 <= _pixels_of(picture, COLOURS[0]) - zoom**2 * 101 * 203 < legend
    assert 0 <= _pixels_of(picture, COLOURS[1]) - zoom**2 * 101 * 153 < legend
    assert 0 < _pixels_of(picture, COLOURS[2]) < legend
    # Image, map and errors are hatched where the map is nodata; elsewhere all is wrong.
    hatched = sum(_pixels_of(picture, (grey, grey, grey)) for grey in (0xD0, 0x98))
    assert 0 <= hatched - zoom**2 * 3 * 101 * 50 < legend
    assert 0 <= _pixels_of(picture, WRONG) - zoom**2 * 101 * 153 < legend


@pytest.mark.parametrize("shape", [(1, 1), (51, 51), (5000, 3), (3, 5000)])
def test_odd_shapes_are_drawn_within_the_size_asked_for(
    shape: tuple[int, int], classes: ClassMap, tmp_path: Path
) -> None:
    _draw(np.full(shape, 3, np.uint8), classes, tmp_path / "p.png", "t", side=800)
    height, width, _ = _picture(tmp_path / "p.png").shape
    assert max(height, width) < 800 + 300
    assert _pixels_of(_picture(tmp_path / "p.png"), COLOURS[3]) > 300


def test_a_large_raster_is_thinned_out_and_no_colour_is_invented(classes: ClassMap, tmp_path: Path) -> None:
    ids = np.indices((1500, 1900)).sum(axis=0) // 7 % 2 * 2  # classes 0 and 2 alternate; 1 lies between
    _draw(ids.astype(np.uint8), classes, tmp_path / "p.png", side=500)
    picture = _picture(tmp_path / "p.png")[80:200, 290:480]  # of the right panel
    assert {tuple(c) for c in np.unique(picture.reshape(-1, 3), axis=0).tolist()} == {COLOURS[0], COLOURS[2]}


def test_names_are_drawn_as_text_never_as_markup(classes: ClassMap, tmp_path: Path) -> None:
    confusion = ConfusionMatrix(classes)
    confusion.add(np.array([0, 0, 1, 2, 4, 5], np.uint8), np.array([0, 1, 1, IGNORE, 3, 5], np.uint8))
    save_figure(confusion_panel(confusion, r"a $\bad$ formula and 100 %"), tmp_path / "confusion.png")
    learning_curves(
        [{"step": 1, "miou": 0.5, "iou": dict.fromkeys(ODD_NAMES, 0.5)}], tmp_path / "c.png", r"$\bad$"
    )
    _draw(np.zeros((9, 9), np.uint8), classes, tmp_path / "map.png", r"$\undefined$ <i>")
    assert len(list(tmp_path.iterdir())) == 3


def test_scores_draw_the_classes_of_their_protocol(
    make_classes: Callable[..., ClassMap], tmp_path: Path
) -> None:
    confusion = ConfusionMatrix(make_classes(3))
    confusion.add(np.array([0, 1, 2], np.uint8), np.array([0, 2, 2], np.uint8))
    panel = confusion_panel(confusion.scores(Protocol(("a", "b"), "full", "test")))
    save_figure(panel, tmp_path / "p.png")
    # Class a found, class b wholly missed, class c not there.
    assert 2 * 1400 < _pixels_of(_picture(tmp_path / "p.png"), (8, 48, 107)) < 2 * 46 * 46 + 100


def test_learning_curves_have_the_colours_of_the_map(tmp_path: Path) -> None:
    colours = {"snow": (255, 255, 255), "sand": (250, 240, 200), "sea": (0, 0, 160), "wood": (10, 90, 30)}
    classes = ClassMap(tuple(LandCoverClass(n, c, i) for i, (n, c) in enumerate(colours.items())))
    for name, colour in (("snow", colours["snow"]), ("sea", colours["sea"])):
        log = [{"step": s, "miou": 0.9, "iou": {name: 0.1 + s / 100}} for s in (10, 20, 30)]
        learning_curves(log, tmp_path / "c.png", classes=classes)
        panel = _picture(tmp_path / "c.png")[380:740, 95:760]  # the scores', without its legend
        pale = name == "snow"
        assert _pixels_of(panel, colour) > 300
        assert (_pixels_of(panel, (89, 89, 89)) > 60) == pale  # the outline, without which white is not seen
        others = [c for c in colours.values() if c not in (colour, (255, 255, 255))]
        assert sum(_pixels_of(panel, c) for c in (*others, (31, 119, 180))) == 0  # the last is matplotlib's


def test_losses_and_learning_rates_are_drawn(tmp_path: Path) -> None:
    learning_curves([{"step": i, "loss": 2 / i} for i in range(1, 30)], tmp_path / "c.png")
    learning_curves([{"step": i, "miou": 0.5, "iou": {}} for i in range(1, 30)], tmp_path / "none.png")
    blue, none = (_picture(tmp_path / f"{name}.png").astype(int) for name in ("c", "none"))
    bluish = [int(((p[..., 2] - p[..., 0]) > 30).sum()) for p in (blue, none)]
    assert bluish[0] > bluish[1] + 100

    learning_curves([{"step": s, "learning_rate": 1e-3} for s in (10, 20, 30)], tmp_path / "c.png")
    panel = _picture(tmp_path / "c.png")[760:, 95:760]  # the lowest
    assert _pixels_of(panel, (31, 119, 180)) > 30  # what is not at the edge of the line


def test_an_old_picture_stays_until_the_new_one_is_whole(
    classes: ClassMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("segmenter.base.files.os.fsync", full)
    with refused(SegmenterError, where="p.png", fault="cannot write"):
        _draw(np.zeros((9, 9), np.uint8), classes, path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["p.png"]


def test_errors_are_red_where_map_and_label_differ_and_nowhere_else(rng: np.random.Generator) -> None:
    seen = rng.integers(0, 256, (31, 23, 3), np.uint8)
    label, found = (rng.choice([0, 1, 2, IGNORE], (31, 23)).astype(np.uint8) for _ in range(2))
    red = (errors(seen, label, found) == WRONG).all(axis=2)
    known = (label != IGNORE) & (found != IGNORE)
    np.testing.assert_array_equal(red, known & (label != found))
    hatched = {tuple(colour) for colour in errors(seen, label, found)[~known].tolist()}
    assert len(hatched) == 2


def test_the_surer_a_pixel_the_lighter_it_is() -> None:
    sure = np.arange(256, dtype=np.uint8)[None]
    (light,) = lab_of(confident(sure, np.zeros_like(sure)).reshape(1, -1, 3))[..., 0]
    assert (np.diff(light) > -0.5).all()
    assert light[-1] - light[0] > 60


@given(st.floats(1e-3, 1e9))
def test_a_scale_bar_has_a_round_length_and_fits(across: float) -> None:
    text, share = scale_bar(across)
    number, unit = text.split()
    assert share * across == pytest.approx(float(number) * {"m": 1, "km": 1000}[unit], rel=1e-4)
    assert 0.15 < share < 0.41
    assert f"{float(number):.0e}"[0] in "125"


def test_a_legend_shows_each_class_in_its_colour_at_any_width(classes: ClassMap) -> None:
    for width in (9, 1024):
        strip = legend_strip(classes, width, 0.5)
        assert strip.shape[1] >= width
        assert all(_pixels_of(strip, colour) > 60 for colour in COLOURS)


def test_numbers_in_a_matrix_are_read_on_any_cell() -> None:
    """A contrast of 4.5, as the Web Content Accessibility Guidelines want it of texts."""
    for hundred in (0.0, *np.linspace(0.2, 100, 500).tolist()):
        _, colour = figures._cell(hundred)
        on, ink = (_luminance(to_rgb(each)) for each in (colormaps["Blues"](hundred / 100), colour))
        assert (max(on, ink) + 0.05) / (min(on, ink) + 0.05) >= 4.5


def _luminance(rgb: tuple[float, float, float]) -> float:
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in rgb]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def test_the_frame_of_a_finding_has_a_colour_of_no_class() -> None:
    for palette in (COLOURS, ((255, 0, 255), (0, 0, 0), (255, 255, 255)), tuple(default_colours(ODD_NAMES))):
        frame = far_from(palette)
        for sight in SIGHTS:
            assert min(nearest([frame, each], sight)[0] for each in palette) > APART
