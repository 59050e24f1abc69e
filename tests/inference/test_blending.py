"""Smooth mode: windows' weights sum to 1 on each pixel; scales and mirror images, with a real network."""

from fractions import Fraction
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segmenter.base.errors import ConfigError
from segmenter.config.augmentation import TransformConfig
from segmenter.config.recipe import AugmentationConfig, UNetConfig
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.resampling import resample, taps
from segmenter.inference.blending import WEIGHTS, Blend, blend_windows, window_weights
from segmenter.inference.function import predict_function
from segmenter.inference.prediction import ExtraOutputs, Prediction
from segmenter.inference.predictor import MappedWindow, Tiling, classify_all
from segmenter.inference.tta import SYMMETRIES, Symmetry, Tta, parse_tta, seen_by, settled_tta
from segmenter.model.building import build_model
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry, network_geometry
from tests.helpers.array_raster import ArrayJob, ArrayRaster, scene
from tests.helpers.exact_network import exact_network


def blended(
    raster: Any, tiling: Tiling, predict: Any, part: Window | None = None, done: int = 0
) -> Prediction:
    """The whole prediction; every pixel comes once, row by row, in windows of the part's full width."""
    part = part or Window.of(raster.info.size)
    pieces, row = [], part.row + done
    for event in classify_all([ArrayJob(raster, part, done_rows=done)], tiling, predict):
        if isinstance(event, MappedWindow):
            assert event.window == Window(row, part.col, event.window.height, part.width)
            row = event.window.row_stop
            pieces.append(event.prediction)
    assert row == part.row_stop
    join = lambda name: np.concatenate([getattr(p, name) for p in pieces])  # noqa: E731
    return Prediction(join("ids"), join("confidence"), join("probabilities"))


kinds = st.sampled_from(sorted(WEIGHTS))
sides = st.integers(1, 150)


@pytest.mark.slow
@given(sides, sides, kinds, st.sampled_from([0, 10, 25, 50, 75, 90]), st.sampled_from([1, 4, 8]), st.data())
@example(1, 1, "hann", 50, 8, None)
@example(101, 149, "linear", 75, 8, None)
def test_weights_sum_to_1_on_every_pixel(
    height: int, width: int, kind: Any, overlap: int, stride: int, data: st.DataObject | None
) -> None:
    side = data.draw(st.integers(1, 70)) if data else 40
    area = Window(-8, 16, height, width)
    padded = area.size.round_up(stride)
    total = np.zeros((padded.height, padded.width))
    places = list(blend_windows(area, Size(side, side), Blend(overlap, kind), stride, area))
    for place in places:
        assert place.read.size == Size(len(place.rows), len(place.cols))
        assert (place.read.row - area.row) % stride == (place.read.col - area.col) % stride == 0
        assert min(place.rows.min(), place.cols.min()) > 0
        total[place.read.relative_to(area).slices()] += np.outer(place.rows, place.cols)
    kept = total[:height, :width]  # what pads the raster belongs to nobody
    np.testing.assert_allclose(kept, 1, atol=2e-6)
    if data is not None:
        row, col = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
        part = Window(area.row + row, area.col + col, height - row, data.draw(st.integers(1, width - col)))
        some = {p.read: p for p in blend_windows(area, Size(side, side), Blend(overlap, kind), stride, part)}
        touching = [p for p in places if p.read.intersection(part).size.pixels]
        assert list(some) == [p.read for p in touching]  # those of the whole, with the same weights
        for place in touching:
            np.testing.assert_array_equal(place.rows, some[place.read].rows)
            np.testing.assert_array_equal(place.cols, some[place.read].cols)


def test_blending_is_the_weighted_mean_of_the_windows(rng: np.random.Generator) -> None:
    """Against the textbook's way, with whole-raster sums and counts in float64."""
    raster = ArrayRaster(rng.integers(0, 255, (101, 203, 2), np.uint8))
    raster.valid[:, 150:] = False
    predict = exact_network(5, 8, wanted=ExtraOutputs(True, "float16"))
    exact = exact_network(5, 8, wanted=ExtraOutputs(probabilities="float16"))
    tiling = Tiling(Size(40, 48), 0, 8, 3, Blend(50, "hann"))
    sums, counts = np.zeros((104, 208, 7)), np.zeros((104, 208, 1))
    weights = np.outer(window_weights("hann", 40), window_weights("hann", 48))[..., None]
    for top in (0, 16, 32, 48, 64):
        for left in (*range(0, 160, 24), 160):
            image, valid = raster.read(Window(top, left, 40, 48))
            sums[top : top + 40, left : left + 48] += (
                weights * exact(image[None], valid[None]).probabilities[0]
            )
            counts[top : top + 40, left : left + 48] += weights
    mean = (sums / counts)[:101, :203]
    found = blended(raster, tiling, predict)
    assert (found.ids != np.where(raster.valid, mean.argmax(-1), IGNORE)).mean() < 1e-3  # ties by rounding
    np.testing.assert_allclose(found.probabilities, np.where(raster.valid[..., None], mean, 0), atol=1e-3)


@pytest.mark.slow
@given(st.data())
def test_a_part_is_that_part_of_the_whole_bit_for_bit(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    height, width = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 120))
    raster, predict = scene(rng, height, width), exact_network(3, 8, wanted=ExtraOutputs(True, "float16"))
    row, col = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    part = Window(row, col, data.draw(st.integers(1, height - row)), data.draw(st.integers(1, width - col)))
    done = data.draw(st.integers(0, part.height - 1))
    tiling = Tiling(Size(40, 32), 0, 8, data.draw(st.integers(1, 4)), Blend(50, data.draw(kinds)))
    whole, found = blended(raster, tiling, predict), blended(raster, tiling, predict, part, done)
    rows = slice(row + done, part.row_stop)
    for name in ("ids", "confidence", "probabilities"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name)[rows, col : part.col_stop])


def test_a_senseless_overlap_is_refused() -> None:
    with pytest.raises(ConfigError, match="--overlap"):
        Blend(100)


SIZES = [(5, 7), (97, 101)]
SCALE = Normalisation.of((127, 127), (70, 70))


@pytest.fixture(scope="module")
def network(tensorflow: ModuleType) -> Any:
    """A U-Net of stride 4 with random weights, every class about as frequent."""
    keras.utils.set_random_seed(3)
    model = build_model(UNetConfig(depth=2, width=6), 2, 4)
    rng = np.random.default_rng(3)
    for weight in model.variables:
        if "moving_variance" in weight.path:
            weight.assign(rng.uniform(0.5, 2, weight.shape))
        elif "kernel" not in weight.path:
            weight.assign(rng.normal(size=weight.shape) / 2)
    head = model.get_layer("logits")
    head.kernel.assign(head.kernel * 8)  # answers that differ from pixel to pixel
    head.bias.assign(np.zeros(4))
    head.bias.assign(-model(rng.normal(size=(1, 128, 128, 2))).numpy().mean(axis=(0, 1, 2)))
    return model


def _raster(rng: np.random.Generator, height: int, width: int) -> ArrayRaster:
    return ArrayRaster(rng.integers(0, 255, (height, width, 2), np.uint8), rng.random((height, width)) > 0.02)


def predictor_of(network: Any, text: str) -> Any:
    return predict_function(network, SCALE, ExtraOutputs(True, "float16"), text)


@pytest.fixture(scope="module")
def predictors(network: Any) -> dict[str, Any]:
    return {name: predictor_of(network, name) for name in SYMMETRIES}


@pytest.mark.parametrize("name", ["flips", pytest.param("all", marks=pytest.mark.slow)])
def test_exact_mode_is_the_whole_raster_at_once(
    network: Any, predictors: dict[str, Any], rng: np.random.Generator, name: str
) -> None:
    """Ids, confidence and probabilities, bit for bit; windows that do and do not divide the raster."""

    geometry, predict = network_geometry(network), predictors[name]
    assert geometry.stride == 4
    seen = set()
    for size in SIZES:
        raster = _raster(rng, *size)
        padded = Size(*size).round_up(4)
        image, valid = raster.read(Window.of(padded))
        whole = predict(image[None], valid[None])[0].masked(valid)
        tiling = Tiling(Size(64, 64), geometry.radius or 0, 4, 3)
        for event in classify_all([ArrayJob(raster)], tiling, predict):
            if isinstance(event, MappedWindow):
                expected = whole[event.window.slices()]
                np.testing.assert_array_equal(event.prediction.ids, expected.ids)
                np.testing.assert_array_equal(event.prediction.confidence, expected.confidence)
                np.testing.assert_array_equal(event.prediction.probabilities, expected.probabilities)
        seen |= set(np.unique(whole.ids))
    assert len(seen - {255}) >= 3  # no easy case


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flips", pytest.param("all", marks=pytest.mark.slow)])
def test_a_mirrored_raster_gives_the_mirrored_map(
    predictors: dict[str, Any], rng: np.random.Generator, name: str
) -> None:
    """In both modes, where the raster's sides are multiples of the stride; without symmetries it does not."""
    image = rng.integers(0, 255, (64, 64, 2), np.uint8)
    for tiling in (Tiling(Size(64, 64), 0, 4, 3), Tiling(Size(32, 32), 0, 4, 3, Blend(50))):
        plain = blended_or_exact(ArrayRaster(image), tiling, predictors[name])
        for symmetry in SYMMETRIES[name]:
            turned = symmetry.apply(image[None], np.transpose)[0]
            found = blended_or_exact(ArrayRaster(turned), tiling, predictors[name])
            back = symmetry.undo(found[None], np.transpose)[0]
            np.testing.assert_allclose(back, plain, atol=2e-3)
    turned = blended_or_exact(ArrayRaster(image[::-1]), tiling, predictors["none"])[::-1]
    assert np.abs(turned - blended_or_exact(ArrayRaster(image), tiling, predictors["none"])).max() > 0.05


def blended_or_exact(raster: ArrayRaster, tiling: Tiling, predict: Any) -> Any:
    if tiling.blend is not None:
        return np.asarray(blended(raster, tiling, predict).probabilities, np.float32)
    (event,) = (e for e in classify_all([ArrayJob(raster)], tiling, predict) if isinstance(e, MappedWindow))
    return np.asarray(event.prediction.probabilities, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["0.5,1", *(pytest.param(t, marks=pytest.mark.slow) for t in ("0.625", "flips,scales", "2"))]
)
def test_scales_are_exact_in_windows(network: Any, rng: np.random.Generator, text: str) -> None:
    """With the larger stride and radius, bit for bit what the whole raster gives at once."""

    tta = parse_tta(text)
    geometry = seen_by(network_geometry(network), tta, 4)
    predict = predictor_of(network, text)
    halo, stride = geometry.radius or 0, geometry.stride
    side = 2 * -(-halo // stride) * stride + 2 * stride
    raster = _raster(rng, side + 2 * stride + 5, 2 * side - 11)
    image, valid = raster.read(Window.of(raster.info.size.round_up(stride)))
    whole = predict(image[None], valid[None])[0].masked(valid)
    windows = 0
    for event in classify_all([ArrayJob(raster)], Tiling(Size(side, side), halo, stride, 2), predict):
        if isinstance(event, MappedWindow):
            windows += 1
            expected = whole[event.window.slices()]
            np.testing.assert_array_equal(event.prediction.ids, expected.ids)
            np.testing.assert_array_equal(event.prediction.probabilities, expected.probabilities)
    assert windows > 4
    assert len(set(np.unique(whole.ids)) - {255}) >= 3


@pytest.mark.parametrize(("text", "more"), [("none", 0), ("flips", 80), ("all", 80), ("flips,0.5,1", 240)])
def test_the_sums_of_what_is_averaged_are_counted(text: str, more: int) -> None:
    """Ten classes: float32 of the sum and of what is added to it, and as much twice over for scales."""
    plain = NetworkGeometry(4, 9, bytes_per_pixel=1000.0)
    assert seen_by(plain, parse_tta(text), 10).bytes_per_pixel == 1000 + more


@pytest.fixture(scope="module")
def near(tensorflow: ModuleType) -> Any:
    """A network that sees one pixel around: all else that a scale sees is its resampling."""
    keras.utils.set_random_seed(3)
    image = keras.Input((None, None, 2))
    return keras.Model(image, keras.layers.Conv2D(4, 3, padding="same", name="logits")(image))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0.25", *(pytest.param(t, marks=pytest.mark.slow) for t in ("0.75", "2"))])
def test_no_pixel_sees_farther_than_the_radius_over_scales(
    near: Any, rng: np.random.Generator, text: str
) -> None:
    """One input pixel is changed: what moves lies within it, and nearly reaches it."""

    geometry = seen_by(network_geometry(near), parse_tta(text), 4)
    radius, stride = geometry.radius or 0, geometry.stride
    predict = predictor_of(near, text)
    side = -(-(2 * radius + 4 * stride) // stride) * stride
    image = rng.integers(0, 255, (1, side, side, 2), np.uint8)
    valid, at = np.ones(image.shape[:3], np.bool_), side // 2 + 1
    before = np.asarray(predict(image, valid).probabilities, np.float32)
    image[0, at, at] = 255 - image[0, at, at]
    moved = np.abs(before - np.asarray(predict(image, valid).probabilities, np.float32))[0].max(axis=2) > 0
    rows, cols = np.nonzero(moved)
    farthest = max(np.abs(rows - at).max(), np.abs(cols - at).max())
    assert radius / 4 <= farthest <= radius


@pytest.mark.slow
def test_a_scale_is_the_model_on_resampled_pixels(network: Any, rng: np.random.Generator) -> None:
    """Against NumPy: resampled, seen, and its probabilities resampled back; the mean over scales."""
    image = rng.integers(0, 255, (64, 96, 2), np.uint8)
    valid = np.ones((64, 96), np.bool_)

    def along(source: Size, target: Size, step: Fraction) -> Any:
        rows = taps(0, target.height, source.height, step)
        return rows, taps(0, target.width, source.width, step)

    each = []
    for factor in (Fraction(1, 2), Fraction(1), Fraction(5, 4)):
        size, seen = Size(64, 96), Size(int(64 * factor), int(96 * factor))
        pixels = (image.astype(np.float32) - 127) / 70
        copy, there = resample(pixels, valid, *along(size, seen, 1 / factor))
        logits = np.asarray(network(copy[None], training=False))[0].astype(np.float64)
        shares = np.exp(logits - logits.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        each.append(resample(shares, there, *along(seen, size, factor))[0])
    found = predictor_of(network, "0.5,1,1.25")(image[None], valid[None])
    np.testing.assert_allclose(found.probabilities[0].astype(np.float64), np.mean(each, axis=0), atol=1e-3)
    assert np.abs(each[0] - each[1]).max() > 0.1


def test_what_is_averaged_has_one_text_and_each_symmetry_is_undone(rng: np.random.Generator) -> None:
    three = (Fraction(3, 4), Fraction(1), Fraction(5, 4))
    assert parse_tta("flips,scales") == parse_tta("1.25,flips,0.75,1") == Tta("flips", three)
    assert [str(parse_tta(t)) for t in ("none", "all", "1", "scales", "1.0,flips,0.5")] == [
        *("none", "all", "none", "0.75,1,1.25", "flips,0.5,1"),
    ]
    assert parse_tta("all,scales").count == 24

    array = np.arange(24).reshape(1, 4, 6, 1)
    turned = [symmetry.apply(array, np.transpose) for symmetry in SYMMETRIES["all"]]
    assert len({(t.shape, t.tobytes()) for t in turned}) == 8
    for symmetry, other in zip(SYMMETRIES["all"], turned, strict=True):
        np.testing.assert_array_equal(symmetry.undo(other, np.transpose), array)
    assert SYMMETRIES["none"] == (Symmetry(),)


@pytest.mark.parametrize(
    "text",
    [
        *("", "flip", "flips,all", "1,1.0", "scales,1", "5", "0.1", "-1", "0.9137", "nan"),
        *("1e99999999", "1e-99999999", "1" * 21),  # would take for ever
    ],
)
def test_what_cannot_be_averaged_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="--tta: expected "):
        parse_tta(text)


def transforms(*names: str) -> AugmentationConfig:
    """Return an augmentation of transforms alone, as `start` plans one for pictures of streets."""
    return AugmentationConfig(d4=False, transforms=tuple(TransformConfig(name=name) for name in names))


@pytest.mark.parametrize(
    ("augmentation", "symmetries"),
    [
        (AugmentationConfig(), "all"),
        (transforms("HorizontalFlip", "RandomGamma"), "mirror"),
        (transforms("VerticalFlip", "HorizontalFlip"), "flips"),
        (transforms("VerticalFlip"), "none"),  # upside down alone is no choice of --tta
        (transforms("RandomRotate90"), "none"),
        (transforms("RandomRotate90", "HorizontalFlip"), "all"),
        (transforms("SquareSymmetry"), "all"),
        (transforms(), "none"),
    ],
)
def test_auto_averages_what_the_training_showed(augmentation: AugmentationConfig, symmetries: str) -> None:
    trained = augmentation.symmetries
    assert settled_tta(parse_tta("0.5,auto"), [trained]) == parse_tta(f"{symmetries},0.5")
    assert settled_tta(parse_tta("auto"), ["all", trained]).symmetries == symmetries, "what all members saw"
    assert settled_tta(parse_tta("flips"), [trained]) == Tta("flips"), "asked for by name"


def test_mirror_swaps_left_and_right_alone() -> None:
    image = np.arange(12).reshape(1, 2, 3, 2)
    views = [symmetry.apply(image, np.transpose) for symmetry in SYMMETRIES["mirror"]]
    assert [view.tolist() for view in views] == [image.tolist(), image[:, :, ::-1].tolist()]


@pytest.mark.parametrize("text", ["2/3,1", "flips,5/9,1.25"])
def test_a_fraction_that_is_no_decimal_is_kept_as_one(text: str) -> None:
    assert parse_tta(str(parse_tta(text))) == parse_tta(text)
