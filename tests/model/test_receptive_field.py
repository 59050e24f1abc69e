"""Stride and radius of layers, encoders and models: the literature's, and what moves with a pixel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from segmenter.config.models import EncoderDecoderConfig
from segmenter.config.recipe import UNetConfig
from segmenter.model import encoders
from segmenter.model.building import build_model
from segmenter.model.decoders.pooling import PartMeans
from segmenter.model.layers import Layers
from segmenter.model.receptive_field import network_geometry
from segmenter.model.size import training_bytes_per_image


@pytest.mark.parametrize(("depth", "upsampling"), [(1, "bilinear"), (2, "transpose"), (3, "nearest")])
def test_outputs_of_a_unet_move_as_far_as_its_radius(
    depth: int, upsampling: str, rng: np.random.Generator
) -> None:
    config = UNetConfig(depth=depth, width=3, upsampling=upsampling)
    model = build_model(config, 1, 2, dtype="float64")
    make_all_contributions_count(model, rng)
    geometry = network_geometry(model)
    assert geometry.radius is not None
    for axis in (0, 1):
        (moved,) = moved_along(model, geometry.stride, geometry.radius, axis)
        assert (moved.farthest(), moved.shifts()) == (geometry.radius, [2**depth])


def test_memory_is_that_of_the_tensors_alive() -> None:
    """By hand, in floats a pixel: where the skip is joined, 16 of it, 32 from below and 48 together."""
    model = build_model(UNetConfig(depth=2, width=16, upsampling="nearest"), 3, 4)
    assert network_geometry(model).bytes_per_pixel == pytest.approx(4 * (16 + 32 + 48) * 1.7)

    single = build_model(UNetConfig(depth=2, width=8), 3, 4)
    small, large = (training_bytes_per_image(single, side, side) for side in (64, 128))
    assert large == 4 * small


def _network(layer: Any) -> Any:
    """3×3 at half the size, a layer, and back: stride 2 whatever the layer."""
    image = keras.Input((64, 64, 4))
    x = keras.layers.Conv2D(4, 3, 2, padding="same")(image)
    return keras.Model(image, keras.layers.UpSampling2D(2)(layer(x)))


def test_a_layer_nobody_knows_means_smooth_never_a_guess() -> None:
    class Own(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs[:, ::-1]

    layers = keras.layers
    gap = layers.GlobalAveragePooling2D(keepdims=True)
    cases: dict[str, Any] = {
        "(Own) is of a kind": Own(),
        "(Flip) is of a kind": lambda x: keras.ops.flip(x, axis=1),
        "(PartMeans) looks at the whole image": lambda x: layers.Multiply()([x, PartMeans(1)(x)]),
        "otherwise than a decoder here": lambda x: layers.MaxPooling2D(2)(
            layers.Conv2DTranspose(4, 2, 2, padding="valid")(x)
        ),
        "enlarges bilinearly by 3": lambda x: layers.MaxPooling2D(3)(
            layers.UpSampling2D(3, interpolation="bilinear")(x)
        ),
        "(GlobalAveragePooling2D) looks at": lambda x: layers.Multiply()([x, layers.Dense(4)(gap(x))]),
    }
    for reason, layer in cases.items():
        model = _network(layer)
        found = network_geometry(model)
        assert found.radius is None, reason
        assert reason in found.unlimited
        assert found.stride == 2, f"{reason}: {found.stride}"
        assert found.bytes_per_pixel > 0


def test_rows_and_columns_may_differ_and_another_size_has_no_exact_windows() -> None:
    image = keras.Input((None, None, 1))
    x = keras.layers.Conv2D(2, (1, 7), (2, 1), padding="same")(image)
    model = keras.Model(image, keras.layers.UpSampling2D((2, 1))(x))
    assert (network_geometry(model).stride, network_geometry(model).radius) == (2, 3)

    image = keras.Input((None, None, 1))
    found = network_geometry(keras.Model(image, keras.layers.Conv2D(2, 3)(image)))
    assert found.radius is None
    assert "larger or smaller than its image" in found.unlimited


_CHANNELS = 2


def random_network(rng: np.random.Generator, layers: int) -> Any:
    """A float64 model of one to `layers` random blocks, from 2 bands to as many channels."""
    image = keras.Input((None, None, _CHANNELS), dtype="float64")
    x, signed = image, rng.random() < 0.3
    for _ in range(int(rng.integers(1, layers + 1))):
        x = _Blocks(rng, signed).block(x, 2)
    return keras.Model(image, x)


class _Blocks:
    def __init__(self, rng: np.random.Generator, signed: bool) -> None:
        self._rng, self._signed, self._layers = rng, signed, keras.layers

    def block(self, x: Any, levels: int) -> Any:
        kinds: list[Callable[[], Any]] = [
            *(lambda: self.same(x), lambda: self.same(x), lambda: self.padded(x)),
            *(lambda: self.pixelwise(x), lambda: self.pool(x)),
        ]
        if levels:
            kinds += [lambda: self.branches(x, levels)] + [lambda: self.down_and_up(x, levels)] * 2
        return self._one_of(kinds)()

    def _one_of(self, kinds: Sequence[Any]) -> Any:
        return kinds[self._rng.integers(len(kinds))]

    def same(self, x: Any) -> Any:
        kernel, dilation = tuple(map(int, self._rng.integers(1, 5, 2))), int(self._rng.integers(1, 4))
        options = {"padding": "same", "dilation_rate": dilation, "use_bias": False, "dtype": "float64"}
        if self._rng.random() < 0.3:
            return self._layers.DepthwiseConv2D(kernel, **options)(x)
        layer = self._layers.Conv2D(_CHANNELS, kernel, **options)
        return layer(layer(x)) if self._rng.random() < 0.2 else layer(x)

    def padded(self, x: Any) -> Any:
        top, bottom, left, right = map(int, self._rng.integers(0, 3, 4))
        x = self._layers.ZeroPadding2D(((top, bottom), (left, right)), dtype="float64")(x)
        kernel = (top + bottom + 1, left + right + 1)
        return self._layers.Conv2D(_CHANNELS, kernel, use_bias=False, dtype="float64")(x)

    def pixelwise(self, x: Any) -> Any:
        kinds = [
            lambda: self._layers.BatchNormalization(dtype="float64"),
            lambda: self._layers.Activation("gelu", dtype="float64"),
            lambda: self._layers.Dense(_CHANNELS, dtype="float64"),
        ]
        return self._one_of(kinds)()(x)

    def pool(self, x: Any) -> Any:
        return self._pool(tuple(map(int, self._rng.integers(1, 4, 2))), 1, padding="same", dtype="float64")(x)

    @property
    def _pool(self) -> Any:
        if self._signed or self._rng.random() < 0.5:
            return self._layers.AveragePooling2D
        return self._layers.MaxPooling2D

    def branches(self, x: Any, levels: int) -> Any:
        left, right = self.block(x, levels - 1), self.block(x, levels - 1)
        if self._rng.random() < 0.3:
            joined = self._layers.Concatenate(dtype="float64")([left, right, x])
            return self._layers.Conv2D(_CHANNELS, 1, dtype="float64")(joined)
        return self._layers.Add(dtype="float64")([left, right])

    def down_and_up(self, x: Any, levels: int) -> Any:
        by = int(self._rng.choice([2, 2, 4]))
        kernel = int(self._rng.integers(1, by + 3))
        way = self._rng.integers(4)
        options = {"use_bias": False, "dtype": "float64"}
        if way == 0:
            x = self._layers.Conv2D(_CHANNELS, kernel, by, padding="same", **options)(x)
        elif way == 1:
            x = self._pool(kernel, by, padding="same", dtype="float64")(x)
        elif way == 2:  # as keras.applications has it
            before = int(self._rng.integers(0, 3))
            x = self._layers.ZeroPadding2D(((before, by), (by, before)), dtype="float64")(x)
            x = self._layers.DepthwiseConv2D(before + by + 1, by, padding="valid", **options)(x)
        else:
            x = self._layers.AveragePooling2D(by, dtype="float64")(x)
        x = self.block(x, levels - 1)
        if self._rng.random() < 0.4:
            mode = "nearest" if self._rng.random() < 0.5 else "bilinear"
            return self._layers.UpSampling2D(by, interpolation=mode, dtype="float64")(x)
        kernel = by + int(self._rng.integers(0, 4))
        return self._layers.Conv2DTranspose(_CHANNELS, kernel, by, padding="same", **options)(x)


def _measured(model: Any, rng: np.random.Generator) -> tuple[int, int]:
    make_all_contributions_count(model, rng)
    geometry = network_geometry(model)
    assert geometry.radius is not None
    cells = -(-geometry.radius // geometry.stride) + 1
    side = (2 * cells + 1) * geometry.stride
    assert model(np.zeros((1, side, side, 2))).shape[1:3] == (side, side)
    middle = cells * geometry.stride
    _assert_all_shifts(model, geometry.stride, middle, side)
    return geometry.radius, max(farthest_moved(model, geometry.stride, middle, side, rng))


def _assert_all_shifts(model: Any, by: int, middle: int, side: int) -> None:
    images = np.zeros((2, side + by, side + by, 2))
    images[0, middle, middle] = images[1, middle + by, middle + by] = 1, 2
    first, second = np.asarray(model(images))
    np.testing.assert_allclose(second[by:, by:], first[:-by, :-by], rtol=1e-12, atol=0)


@hypothesis.settings(max_examples=12)
@given(seed=st.integers(0, 10_000))
def test_outputs_move_within_the_radius_and_as_far(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_network(rng, 3)
    radius, moved = _measured(model, rng)
    assert moved == radius, [layer.get_config() for layer in model.layers]


pytestmark = pytest.mark.usefixtures("tensorflow")
FAR = 1024
"""Pixels: longer than what any encoder of few blocks sees without means."""


def encoder_of(name: str) -> Any:
    image = keras.Input((None, None, 3), dtype="float64")
    config = EncoderDecoderConfig(kind="encoder_decoder", encoder=name)
    features = encoders.ENCODERS[name](image, Layers(keras.DTypePolicy("float64"), False), config)
    model = keras.Model(image, [each for each in features if each is not None])
    make_all_contributions_count(model, np.random.default_rng(1))
    return model


def whole(encoder: str, decoder: str, gain: float = 0.5, **options: Any) -> Any:
    settings = {"kind": "encoder_decoder", "encoder": encoder, "decoder": decoder, "decoder_width": 16}
    model = build_model(EncoderDecoderConfig.model_validate({**settings, **options}), 3, 2, dtype="float64")
    make_all_contributions_count(model, np.random.default_rng(1), gain)
    return model


def assert_geometry_is_what_moves(model: Any, axis: int) -> None:
    """For each output: nothing moves beyond its radius, something as far; it shifts with its stride alone."""
    image, geometry = model.inputs[0], network_geometry(model)
    own = [network_geometry(keras.Model(image, output)) for output in model.outputs]
    assert geometry.stride == max(each.stride for each in own)
    assert geometry.radius is not None
    found = moved_along(model, geometry.stride, geometry.radius, axis)
    for each, moved in zip(own, found, strict=True):
        assert moved.farthest() == each.radius
        assert moved.shifts() == list(range(each.stride, geometry.stride + 1, each.stride))


@pytest.mark.parametrize(
    ("encoder", "decoder", "options", "axis"),
    [
        *((name, None, {}, axis) for name in ("resnet18", "efficientnet_lite0") for axis in (0, 1)),
        ("densenet121", None, {}, 0),
        ("resnet18", "deeplabv3plus", {"output_stride": 16}, 1),
        ("efficientnet_lite0", "deeplabv3plus", {"output_stride": 8}, 0),
        pytest.param("resnet18", "fpn", {}, 1, marks=pytest.mark.slow),
        pytest.param("convnext_tiny", "unet", {}, 1, marks=pytest.mark.slow),
    ],
)
def test_encoders_and_models_move_as_far_as_their_radius_and_with_their_stride(
    few_blocks: None, encoder: str, decoder: str | None, options: dict[str, Any], axis: int
) -> None:
    model = encoder_of(encoder) if decoder is None else whole(encoder, decoder, **options)
    assert network_geometry(model).stride == options.get("output_stride", 32)
    assert_geometry_is_what_moves(model, axis)


def test_squeeze_and_excitation_lets_a_pixel_move_every_output(few_blocks: None) -> None:
    """In the dark it has nothing to scale, so that there only what is near moves: the means do it."""
    encoder = encoder_of("efficientnet_v2_b0")
    nets = [keras.Model(encoder.inputs[0], each) for each in encoder.outputs]
    unlimited = [network_geometry(net).radius is None for net in nets]
    assert unlimited == [False, False, False, True, True]
    assert all_move(encoder, FAR, around=1) == unlimited
    assert not any(all_move(encoder, FAR, around=0))
    assert_geometry_is_what_moves(keras.Model(encoder.inputs[0], encoder.outputs[:3]), axis=1)


@pytest.mark.parametrize(
    ("encoder", "decoder", "options"),
    [
        ("resnet18", "upernet", {}),
        # With a gain of ½ the change drowns in the finer features: 1 to 10¹⁶.
        pytest.param("efficientnet_v2_b0", "unet", {"gain": 1}, marks=pytest.mark.slow),
        pytest.param("resnet18", "deeplabv3plus", {"image_pooling": True}, marks=pytest.mark.slow),
    ],
)
def test_without_a_radius_a_pixel_moves_every_output(
    few_blocks: None, encoder: str, decoder: str, options: dict[str, Any]
) -> None:
    model = whole(encoder, decoder, **options)
    assert (network_geometry(model).radius, network_geometry(model).stride) == (None, 32)
    assert all_move(model, FAR, around=1) == [True]


def _encoder(name: str) -> Any:
    options: dict[str, Any] = {"include_top": False, "weights": None, "input_shape": (None, None, 3)}
    if name == "MobileNetV2":
        options["alpha"] = 0.35
    return getattr(keras.applications, name)(**options)


RADII = {"MobileNetV2": 245, "ResNet50": 241, "DenseNet121": 1021}
"""Araujo, Norris & Sim (doi:10.23915/distill.00021) give the whole field, twice that and one: 491 pixels for
MobileNetV2, 483 for ResNet-50."""
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name != "MobileNetV2" else []) for name in RADII]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_field_is_that_of_the_literature(name: str) -> None:
    geometry = network_geometry(_encoder(name))
    assert (geometry.stride, geometry.radius) == (32, RADII[name])


def make_all_contributions_count(model: Any, rng: np.random.Generator, gain: float = 0.5) -> None:
    """Positive weights that average: nothing cancels, no rectifier closes, none saturates."""
    for variable in model.variables:
        shape = tuple(variable.shape)
        if variable.dtype not in ("float32", "float64"):
            continue
        if "moving" in variable.path or len(shape) < 2:
            plain = (
                0.0 if "mean" in variable.name or "beta" in variable.name or "bias" in variable.name else 1.0
            )
            variable.assign(np.full(shape, gain if variable.name == "gamma" else plain))
        else:
            weights = rng.uniform(0.5, 1.5, shape)
            depthwise = shape[-1] == 1 and len(shape) == 4
            variable.assign(weights / weights.sum(axis=(0, 1) if depthwise else tuple(range(len(shape) - 1))))


def farthest_moved(
    model: Any, stride: int, middle: int, side: int, rng: np.random.Generator
) -> tuple[int, int]:
    """The farthest output pixel that moves along (rows, columns) when one input pixel changes.

    Every pixel of one cell of the stride's grid is changed, in an image of its own, the others being 0, so
    that what comes of the change wins in every pool.
    """
    bands, farthest = model.inputs[0].shape[-1], [0, 0]
    before = np.asarray(model(np.zeros((1, side, side, bands)), training=False))
    for row in range(middle, middle + stride):
        images = np.zeros((stride, side, side, bands))
        images[np.arange(stride), row, middle + np.arange(stride)] = rng.uniform(1, 2, (stride, bands))
        moved = (np.asarray(model(images, training=False)) != before).any(axis=3)
        number, rows, cols = np.nonzero(moved)
        for axis, far in enumerate((rows - row, cols - middle - number)):
            farthest[axis] = max(farthest[axis], int(np.abs(far).max(initial=0)))
    return farthest[0], farthest[1]


@dataclass(frozen=True)
class Moved:
    """Pixels of one output of a model that a changed pixel moves, along a strip.

    Attributes:
        scale: input pixels that an output pixel covers.
        first: the first place of the changed pixel; the others follow one by one, for a step of the stride.
        sums: (place, output pixel along the strip): of the values that moved.
    """

    scale: int
    first: int
    sums: NDArray[np.float64]

    def farthest(self) -> int:
        """The farthest from the changed pixel, beyond the pixels that an output pixel covers."""
        place, at = np.nonzero(self.sums)
        changed, covered = self.first + place, self.scale * at
        return int(np.maximum(covered - changed, changed - (covered + self.scale - 1)).max())

    def shifts(self) -> list[int]:
        """The steps of the changed pixel with which all that moves goes along, to float64's rounding.

        A step between two output pixels may take it to either.
        """
        return [step for step in range(1, len(self.sums)) if self._goes_along(step)]

    def _goes_along(self, step: int) -> bool:
        before, after = self.sums[0], self.sums[step]
        pixels = {step // self.scale, -(-step // self.scale)}
        return any(
            np.allclose(after[by:], before[: len(before) - by], rtol=1e-12, atol=0)  # matrices of other sizes
            for by in pixels
        )


def moved_along(model: Any, stride: int, radius: int, axis: int) -> list[Moved]:
    """Return the pixels of each output that a changed pixel moves, along rows (axis 0) or columns (1).

    The image is a strip, a step of the stride across: what a pixel reaches along it, it reaches whatever is
    across. It is 0 but for the changed pixel, so that the smallest value shows. There is room for a step more
    than the radius.
    """
    cells = -(-radius // stride) + 1
    length, first = (2 * cells + 2) * stride, cells * stride
    sums: list[list[NDArray[np.float64]]] = [[] for _ in model.outputs]
    places = range(first, first + stride + 1)
    for some in (places[i : i + _TOGETHER] for i in range(0, len(places), _TOGETHER)):
        for found, values in zip(sums, _on_strips(model, length, stride, some, axis), strict=True):
            found.extend(np.abs(values).sum(axis=(1, 3)))
    return [Moved(length // len(found[0]), first, np.stack(found)) for found in sums]


def all_move(model: Any, length: int, around: float) -> list[bool]:
    """True for each output of which all moves when the first pixel along a strip of one value changes."""
    outputs = _on_strips(model, length, network_geometry(model).stride, (0, None), 1, around)
    return [bool((changed != plain).any(axis=2).all()) for changed, plain in outputs]


_TOGETHER = 11
"""Strips: more take more memory and no less time."""


def _on_strips(
    model: Any, length: int, across: int, places: Sequence[int | None], axis: int, around: float = 0
) -> list[NDArray[np.float64]]:
    """Outputs for strips in one of whose pixels, or none, something is added; their columns lie along it."""
    strips = np.full((len(places), across, length, model.inputs[0].shape[-1]), float(around))
    for strip, place in zip(strips, places, strict=True):
        if place is not None:
            strip[across // 2, place] += np.linspace(1, 2, strips.shape[3])
    turn = (0, 2, 1, 3) if axis == 0 else (0, 1, 2, 3)
    return [
        np.asarray(each).transpose(turn) for each in as_list(model(strips.transpose(turn), training=False))
    ]


def as_list(outputs: Any) -> list[Any]:
    """Outputs of a model, also where it has one."""
    return outputs if isinstance(outputs, list) else [outputs]
