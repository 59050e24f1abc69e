"""Encoders: Keras' outputs to the bit, atrous features on the coarse grid; stages, their rates and decay."""

import contextlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest

from segmenter.base.errors import CheckpointError, ConfigError
from segmenter.config.models import NOT_ATROUS, NOT_RESIDUAL, EncoderDecoderConfig
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import ModelConfig, TrainingConfig, UNetConfig
from segmenter.model import encoders
from segmenter.model.batchnorm import SyncBatchNorm
from segmenter.model.building import build_model, shapes_of, stages_of
from segmenter.model.encoders.keras_applications import SOURCES
from segmenter.model.layers import BilinearUpSampling, ChannelNorm, Layers
from segmenter.model.size import check_weights, stage_of, training_bytes_per_image, weight_shapes
from segmenter.model.stages import Pace, pace_of, part_of, stages_told
from tests.helpers.encoder_pairs import DECODERS, ENCODERS, pair
from tests.helpers.executed_sums import widest_sum
from tests.helpers.refusals import refused
from tests.helpers.small_encoders import SMALL

pytestmark = pytest.mark.usefixtures("tensorflow")

SLOW = [pytest.param(name, marks=[pytest.mark.slow] if name != "mobilenet_v2" else []) for name in SOURCES]
ATROUS = [each for each in SLOW if each.values[0] not in NOT_ATROUS]


def config(encoder: str, **options: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(kind="encoder_decoder", encoder=encoder, **options)


def features_model(encoder: str, *, bands: int = 3, synchronised: bool = True, **options: Any) -> Any:
    image = keras.Input((None, None, bands))
    layers = Layers(keras.DTypePolicy("float32"), synchronised)
    features = encoders.ENCODERS[encoder](image, layers, config(encoder, **options))
    return keras.Model(image, [each for each in features if each is not None])


def unlike_new(variables: list[Any]) -> None:
    """Weights and statistics as no initialiser makes them, that BatchNorm and layer scale show."""
    rng = np.random.default_rng(5)
    for v in variables:
        name = v.path.rpartition("/")[2]
        if name == "moving_variance":
            v.assign(rng.uniform(0.5, 2, v.shape))
        elif name != "kernel":
            v.assign(rng.normal(0.3, 0.3, v.shape))


def known_as(path: str) -> str:
    """A weight's name here: without the nested model it lies in, ConvNeXt's layer scale with one."""
    path = re.sub(r"/variable(_\d+)?$", "/gamma", "/".join(path.split("/")[-2:]))
    return re.sub(r"^layer_normalization_\d+", "layer_normalization", path)


@pytest.mark.parametrize("name", SLOW)
def test_outputs_at_inference_are_those_of_keras_to_the_bit(name: str) -> None:
    theirs = SOURCES[name].network(4)
    ours = features_model(name, bands=4, drop_path=0 if name in NOT_RESIDUAL else 0.2)
    unlike_new(theirs.weights)
    weights = {known_as(v.path): v for v in theirs.weights if "seed_generator" not in v.path}
    learned = [v for v in ours.variables if not v.path.endswith("/masks")]
    assert sorted(v.path for v in learned) == sorted(weights)
    for v in learned:
        v.assign(weights[v.path])
    image = np.random.default_rng(1).random((2, 64, 96, 4), np.float32)
    for a, b in zip(theirs(image, training=False), ours(image, training=False), strict=True):
        assert np.array_equal(a, b)
    norms = {type(layer) for layer in ours.layers if "BatchNorm" in type(layer).__name__}
    assert norms <= {SyncBatchNorm}
    strides = [64 // f.shape[1] for f in ours(image)]
    assert strides == ([2, 4, 8, 16, 32] if name != "convnext_tiny" else [4, 8, 16, 32])


def check_drop_path(model: Any, rate: float) -> None:
    """The last residual block has the whole rate, those before have it by their number.

    Blocks without a shortcut, which drop nothing, do not count.
    """
    rates = [layer.rate for layer in model.layers if type(layer).__name__ == "DropPath"]
    assert len(rates) >= 8 * (rate > 0)
    assert rates == pytest.approx(np.arange(1, len(rates) + 1) * rate / max(1, len(rates)))


@pytest.mark.slow
@pytest.mark.parametrize("output_stride", [pytest.param(16, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("name", ATROUS)
def test_atrous_features_hold_the_strided_ones(name: str, output_stride: int) -> None:
    """One of every so many of the dense features is the coarse one: the weights see what they learned on."""
    coarse = features_model(name)
    drop_path = 0 if name in NOT_RESIDUAL else 0.3
    atrous = {"decoder": "deeplabv3plus", "output_stride": output_stride}
    dense = features_model(name, **atrous, drop_path=drop_path)
    check_drop_path(dense, drop_path)
    unlike_new(coarse.variables)
    weights = {v.path: v for v in coarse.variables}
    learned = {v.path: v for v in dense.variables if not v.path.endswith("/masks")}
    assert learned.keys() == weights.keys()  # their order is another where a layer is between
    for path, v in learned.items():
        v.assign(weights[path])
    image = np.random.default_rng(1).random((1, 128, 160, 3), np.float32)
    for number, (a, b) in enumerate(zip(coarse(image), dense(image), strict=True), 1):
        step = max(1, 2**number // output_stride)
        first = step - 1 if name != "keras_resnet50" else 0  # where TensorFlow's `same` padding begins
        on_grid = np.asarray(b)[:, first::step, first::step]
        assert b.shape[1] == 128 // min(2**number, output_stride)
        if "efficientnet" in name and step > 1:
            continue  # squeeze and excitation takes the mean of another number of pixels
        assert np.allclose(a, on_grid, rtol=0, atol=1e-5 * np.abs(a).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_weights_have_the_same_names_in_each_model_and_a_stage(name: str) -> None:
    model = config(name, decoder_width=8, drop_path=0 if name in NOT_RESIDUAL else 0.2, dropout=0.1)
    first, second = (build_model(model, 3, 5, synchronised=True) for _ in range(2))
    check_drop_path(first, model.drop_path)
    paths = [v.path for v in first.variables]
    assert paths == [v.path for v in second.variables]
    assert len(set(paths)) == len(paths)
    stages = stages_of(first, model)
    assert stages.keys() == shapes_of(first).keys()
    encoder = [f"encoder stage {n}" for n in range(1, 6)][name == "convnext_tiny" :]
    decoder = [f"decoder stage {n}" for n in range(1, 5)]
    assert sorted(set(stages.values())) == [*decoder, *encoder, "head"]
    told = stages_told(model)
    assert set(told.values()) == set(stages.values())
    assert normed(told) == normed(stages)
    assert model.max_pooled == any("MaxPooling" in type(layer).__name__ for layer in first.layers)
    kernels = [shape for shape in shapes_of(first).values() if len(shape) == 4]
    assert kernels[0][2] == 3  # of the bands: by it a fine-tuning knows whether its first layer is kept


@pytest.mark.slow
def test_drop_path_is_at_the_end_of_each_branch_and_grows(few_blocks: None) -> None:
    model = features_model(SMALL, drop_path=0.6)
    found = {layer.name: layer.rate for layer in model.layers if type(layer).__name__ == "DropPath"}
    assert found == pytest.approx({"b4b_add_drop_path": 0.3, "b4c_add_drop_path": 0.6})
    dropped = {name: model.get_layer(name).input._keras_history.operation.name for name in found}
    assert dropped == {"b4b_add_drop_path": "b4b_project", "b4c_add_drop_path": "b4c_conv"}
    assert [layer.name for layer in model.layers if type(layer).__name__ == "Dropout"] == []


@pytest.mark.parametrize("factor", [2, 8])
def test_bilinear_enlargement_is_tensorflows_in_every_precision(tensorflow: ModuleType, factor: int) -> None:
    tf = tensorflow

    x = np.random.default_rng(2).normal(size=(2, 5, 7, 3))
    expected = tf.image.resize(x, (5 * factor, 7 * factor))
    for dtype, limit in (("float16", 4e-3), ("float32", 0), ("float64", 1e-6)):
        found = BilinearUpSampling(factor, dtype=dtype)(tf.constant(x, dtype))
        assert found.dtype == dtype
        assert np.abs(np.asarray(found, np.float64) - expected).max() <= limit


@pytest.mark.slow
def test_logits_are_of_full_resolution_and_32_bits(few_blocks: None) -> None:
    for decoder in DECODERS:
        model = build_model(config(SMALL, decoder=decoder), 4, 6, dtype="mixed_float16")
        wide = {layer.name for layer in model.layers if layer.output.dtype == "float32"}
        assert wide == {"image", "logits", "logits_enlarge"}
        logits = model(np.zeros((1, 64, 96, 4), np.float32))
        assert (logits.shape, logits.dtype) == ((1, 64, 96, 6), "float32")


def test_three_users_of_a_shared_tensor_have_their_gradients_added_two_by_two(tensorflow: ModuleType) -> None:
    """In the graph that runs: Grappler merges a sum of sums into one, whose order is chance."""
    layers = Layers(keras.DTypePolicy("float32"), True)

    def widest(*, shared: bool) -> int:
        @tensorflow.function(input_signature=[tensorflow.TensorSpec((None, None, None, 3))])
        def gradient(image: Any) -> Any:
            with tensorflow.GradientTape() as tape:
                x = tensorflow.abs(image)
                tape.watch(x)
                parts = layers.share(x, 4, "x") if shared else [x] * 4
                y = sum(tensorflow.reduce_sum(tensorflow.sin(p * (i + 2.0))) for i, p in enumerate(parts))
            return tape.gradient(y, x) * 3.0

        return widest_sum(gradient, tensorflow.ones((2, 8, 8, 3)))

    assert widest(shared=False) == 4
    assert widest(shared=True) == 2


def test_channel_norm_trains_as_it_predicts_and_has_no_wide_sum(tensorflow: ModuleType) -> None:
    norm = ChannelNorm(epsilon=1e-6, dtype="float64")
    x = tensorflow.constant(np.random.default_rng(4).normal(3, 2, (2, 5, 7, 6)))
    norm.build(x.shape)
    unlike_new(norm.variables)
    assert np.allclose(norm(x, training=True), norm(x, training=False), rtol=0, atol=1e-12)

    def gradient(image: Any, training: bool) -> Any:
        with tensorflow.GradientTape() as tape:
            tape.watch(image)
            y = tensorflow.reduce_sum(norm(image, training=training) ** 3)
        return tape.gradient(y, image)

    assert np.allclose(gradient(x, True), gradient(x, False), rtol=0, atol=1e-9)

    def widest(training: bool) -> int:
        graph = tensorflow.function(gradient).get_concrete_function(x, training).graph.as_graph_def()
        return max(len(node.input) for node in graph.node if node.op == "AddN")

    assert (widest(True), widest(False) > 2) == (2, True)


MODELS = {
    "unet": UNetConfig(depth=1, width=4, dropout=0.2),
    **{f"{encoder}, fpn": pair(encoder, "fpn") for encoder in ENCODERS},
    **{f"resnet18, {decoder}": pair("resnet18", decoder) for decoder in DECODERS},
}
QUICK = {("unet", "mixed_float16"), ("efficientnet_lite0, fpn", "float32")}
"""With hardly any blocks; the slow tests have the whole encoders."""
CASES = [(name, dtype) for name in MODELS for dtype in ("float32", "mixed_float16")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param(*e, marks=[] if e in QUICK else [pytest.mark.slow]) for e in CASES]
)
def test_a_model_that_keras_saved_is_the_same(
    tmp_path: Path, rng: np.random.Generator, request: pytest.FixtureRequest, name: str, dtype: str
) -> None:
    if (name, dtype) in QUICK:
        request.getfixturevalue("few_blocks")
    model = build_model(MODELS[name], 3, 4, dtype=dtype, synchronised=True)
    image = rng.normal(size=(2, 64, 64, 3)).astype(np.float32)
    model(image, training=True)  # statistics and masks that are not those of a new model
    model.save(tmp_path / "x.keras")
    loaded, copy = keras.models.load_model(tmp_path / "x.keras"), keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    for other in (loaded, copy):
        assert [type(layer) for layer in other.layers] == [type(layer) for layer in model.layers]
        for training in (False, True):
            np.testing.assert_array_equal(*(_output(each, image, training) for each in (other, model)))


def _output(model: Any, image: Any, training: bool) -> Any:
    """Call a model as it is now: a step of training counts a mask and moves the statistics."""
    before = model.get_weights()
    found = model(image, training=training).numpy()
    model.set_weights(before)
    return found


MODEL = UNetConfig(depth=2, width=2, upsampling="transpose")


def pace(**settings: Any) -> Pace:
    stages = {path: stage_of(path, MODEL) for path in weight_shapes(MODEL, 3, 4)}
    return pace_of(stages, TrainingConfig(**settings))


def test_a_stage_goes_before_its_part_and_trains_after_the_frozen_epochs() -> None:
    found = pace(rates={"encoder": 0.1, "encoder stage 1": 0.05, "decoder": 0, "head": 1})
    assert found.rates["down0_conv0/kernel"] == 0.05
    assert found.rates["down1_norm0/beta"] == found.rates["bottom_conv1/kernel"] == 0.1
    assert "logits/kernel" not in found.rates
    assert not found.trains("up0_conv0/kernel")
    assert found.trains("logits/kernel", 0)

    found = pace(freeze_encoder=2)
    assert [found.trains("down0_conv0/kernel", epoch) for epoch in range(4)] == [False, False, True, True]
    assert all(found.trains(path, 0) for path in ("up0_conv0/kernel", "enlarge1/bias", "logits/bias"))


@pytest.mark.parametrize(
    "config",
    [
        MODEL,
        *(pair(SMALL, decoder) for decoder in DECODERS),
        *(pair(encoder, "unet") for encoder in ("convnext_tiny", "efficientnet_lite0", "resnet18")),
    ],
)
def test_the_stages_told_are_those_of_the_model_that_is_built(few_blocks: None, config: ModelConfig) -> None:
    built = stages_of(build_model(config, 3, 4), config)
    told, found = ({(part_of(p), stage) for p, stage in of.items()} for of in (stages_told(config), built))
    assert told == found
    assert normed(stages_told(config)) == normed(built)


def normed(stages: dict[str, str]) -> set[str]:
    """Parts of a model that have BatchNorm, by `freeze_norms`."""
    found = set()
    for part in ("encoder", "all"):
        with contextlib.suppress(ConfigError):
            found |= {part_of(path) for path in pace_of(stages, TrainingConfig(freeze_norms=part)).norms}
    return found


def test_what_no_model_has_or_nothing_trains_with_is_refused() -> None:
    with refused(ConfigError, where="training.rates", got="encoder stage 3"):
        pace(rates={"encoder stage 3": 0.1})
    with refused(ConfigError, where="training.rates", got="none"):
        pace(rates={"decoder": 0, "head": 0}, freeze_encoder=1)
    with refused(ConfigError, where="training.freeze_encoder", got=1):
        pace(rates={"encoder": 0}, freeze_encoder=1)
    with refused(ConfigError, where="training.freeze_norms", got="all"):
        pace_of(
            {"stem_conv/kernel": "encoder stage 1", "logits/kernel": "head"},
            TrainingConfig(freeze_norms="all"),
        )


CONFIGS: list[dict[str, Any]] = [
    {"depth": 1, "width": 2},
    {"depth": 3, "width": 3, "max_width": 5, "upsampling": "transpose", "dropout": 0.5},
    {"depth": 2, "width": 4, "normalisation": "none", "upsampling": "bilinear"},
]


@pytest.mark.parametrize(("settings", "synchronised"), [*zip(CONFIGS, (True, False, True), strict=True)])
def test_the_shapes_are_those_of_the_built_model(settings: dict[str, Any], synchronised: bool) -> None:
    config = UNetConfig(**settings)
    model = build_model(config, 5, 7, synchronised=synchronised)
    built = {v.path: tuple(v.shape) for v in model.variables if not v.path.endswith("/masks")}
    shapes = dict(weight_shapes(config, 5, 7))
    assert {name: shapes[name] for name in built} == built
    assert shapes.keys() == built.keys()


def arrays(config: UNetConfig) -> dict[str, Any]:
    return {
        f"model/{name}": np.ones(shape, np.float32) for name, shape in weight_shapes(config, 3, 4).items()
    }


def test_weights_that_do_not_fit_are_refused_without_a_model() -> None:
    """A width of 256 at depth 6 would be 4.4 GB; nothing is made here but the weights that are there."""
    small, huge = UNetConfig(depth=1, width=2), UNetConfig(depth=6, width=256, max_width=2048)
    file, there = Path("run/best.npz"), arrays(small)
    check_weights(there, weight_shapes(small, 3, 4), file)
    with pytest.raises(CheckpointError, match=r"best.npz: .*down0_conv0/kernel of shape \(3, 3, 3, 256\)"):
        check_weights(there, weight_shapes(huge, 3, 4), file)
    with refused(CheckpointError, where="run/best.npz", got="(1, 1, 2, 4)"):
        check_weights(there, weight_shapes(small, 3, 5), file)
    there["model/logits/bias"] = np.zeros(4, "U3")
    with refused(CheckpointError, where="run/best.npz", got="(4,) of <U3"):
        check_weights(there, weight_shapes(small, 3, 4), file)
    there["model/logits/bias"] = np.array([0, np.nan, 0, 0], np.float32)
    with refused(CheckpointError, where="run/best.npz", expected="finite weights, logits/bias"):
        check_weights(there, weight_shapes(small, 3, 4), file)


CARDS, GIB = 4, 1 << 30
SAID = re.compile(r"^# Memory: +about (?P<gib>[\d.]+) GiB a GPU at (?P<cards>\d) × (?P<tiles>\d+) tiles")
FOUND = {
    path.stem: match
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
    for line in path.read_text().splitlines()
    if (match := SAID.match(line))
}
CLASSES = {
    "potsdam": 6,
    "potsdam_pretrained": 6,
    "naic2020": 8,
    "naic2020_pretrained": 8,
    "naic2020_round2": 14,
}
"""Bands and classes of the dataset; others would change the head alone, some megabytes."""


@pytest.mark.parametrize(  # those of a whole ResNet50 take half a minute to build
    "name", [pytest.param(each, marks=[pytest.mark.slow] if "pretrained" in each else []) for each in CLASSES]
)
def test_the_memory_that_a_recipe_names_is_the_formulas(name: str) -> None:
    recipe = load_recipe(Path(__file__).parents[2] / "configs" / f"{name}.yaml")
    precision, side = recipe.training.precision, recipe.tiles.size
    assert int(FOUND[name]["cards"]) == CARDS
    tiles = recipe.training.global_batch // CARDS
    assert int(FOUND[name]["tiles"]) == tiles
    model = build_model(recipe.model, 3, CLASSES[name], dtype=precision, synchronised=True)
    each = training_bytes_per_image(model, side, side, mixed=precision == "mixed_float16")
    parameters = sum(int(variable.shape.num_elements()) for variable in model.trainable_variables)
    assert f"{(tiles * each + 16 * parameters) / GIB + 1:.1f}" == FOUND[name]["gib"]


def test_every_recipe_for_four_cards_says_it() -> None:
    assert set(FOUND) == set(CLASSES)
