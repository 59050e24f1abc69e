"""Compiled function from pixels to class ids: only one byte a pixel leaves the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from segmenter.devices.setup import memory_errors
from segmenter.devices.strategy import Devices
from segmenter.grid.geometry import Size, Window
from segmenter.grid.resampling import taps
from segmenter.inference.prediction import ExtraOutputs, Prediction, Predictor
from segmenter.inference.tta import SYMMETRIES, Tta, parse_tta
from segmenter.model.normalisation import Normalisation
from segmenter.model.size import inference_bytes_per_pixel

_CHUNK, _MOST_CHUNKS = 1 << 16, 64
"""Pixels that are computed at once, or some multiples of it: XLA compiles for each shape anew, which is to
happen a bounded number of times, whatever the sizes of rasters. What comes out does not depend on it."""


def per_pixel(function: Callable[..., Any], *inputs: Any) -> Any:
    """Return a function's result, computed in pieces of pixels if that is faster (on a CPU).

    Args:
        function: function of tensors (N, ...) of `inputs`' types, pixel by pixel, that returns (N, ...).
        inputs: (B, H, W) or (B, H, W, channels) with a static number of channels.

    Returns:
        (B, H, W) or (B, H, W, channels), as if the function had been called with the inputs.
    """
    if tf.config.get_visible_devices("GPU"):
        return getattr(function, "python_function", function)(*inputs)
    shape = tf.shape(inputs[0])[:3]
    flat = [tf.reshape(x, [-1, *x.shape[3:]]) for x in inputs]
    compiled, count = fuse(function), tf.shape(flat[0])[0]
    chunk = compiled.get_concrete_function(*(tf.TensorSpec([_CHUNK, *x.shape[1:]], x.dtype) for x in flat))
    result = tf.cond(
        (count % _CHUNK == 0) & (count > 0) & (count <= _CHUNK * _MOST_CHUNKS),
        lambda: compiled(*flat),
        lambda: _in_chunks(compiled, chunk.output_dtypes, flat),
    )
    inner = chunk.output_shapes[1:]
    return tf.ensure_shape(tf.reshape(result, tf.concat([shape, inner], 0)), [None, None, None, *inner])


def fuse(function: Callable[..., Any]) -> Any:
    """Return a function compiled as one loop; `per_pixel` compiles it once. See `_in_chunks`."""
    if hasattr(function, "get_concrete_function"):  # it is fused
        return function
    return tf.function(function, jit_compile=True, autograph=False)


def _in_chunks(compiled: Any, dtype: Any, inputs: list[Any]) -> Any:
    """Compute in chunks of equal length; the last one overlaps the one before."""
    count = tf.shape(inputs[0])[0]
    missing = tf.maximum(_CHUNK - count, 0)
    inputs = [_pad(x, missing) for x in inputs]
    chunks, last = -(-tf.maximum(count, 1) // _CHUNK), count + missing - _CHUNK

    def step(i: Any, results: Any) -> Any:
        start = tf.minimum(i * _CHUNK, last)
        parts = [tf.ensure_shape(x[start : start + _CHUNK], [_CHUNK, *x.shape[1:]]) for x in inputs]
        return i + 1, results.write(i, compiled(*parts)[i * _CHUNK - start :])

    empty = tf.TensorArray(dtype, chunks, infer_shape=False)
    # One after the other: XLA's program for a CPU (TensorFlow 2.21) grows a list of its own in each call, and
    # two calls of one program at once ended in a segmentation fault.
    _, results = tf.while_loop(lambda i, _: i < chunks, step, [0, empty], parallel_iterations=1)
    return results.concat()[:count]


def _pad(values: Any, missing: Any) -> Any:
    paddings = tf.concat([[[0, missing]], tf.zeros([values.shape.rank - 1, 2], tf.int32)], 0)
    return tf.cond(missing > 0, lambda: tf.pad(values, paddings), lambda: values)


# ------------------------------------------------------------------------------------------------ resampling


def rescale(array_BHWC: Any, scale: Fraction) -> Any:
    """Return a tensor at another scale; the scaled sides must be whole numbers.

    A window gives the same bits as the whole, except within one pixel of the window's border.
    """
    if scale == 1:
        return array_BHWC
    return _along(_along(array_BHWC, scale, 1), scale, 2)


def _along(array_BHWC: Any, scale: Fraction, axis: int) -> Any:
    step = 1 / scale
    p, q = step.numerator, step.denominator
    # Weights recur after q pixels, and their places p pixels on; far from any border.
    table = taps(4 * q, 5 * q, 16 * p, step)
    first, weights = table.index - 4 * p, table.weight.astype(np.float32)
    length = tf.shape(array_BHWC)[axis]
    target = tf.range(length * q // p)
    phase, place = target % q, target // q * p
    total: Any = None
    for tap in range(first.shape[1]):
        index = place + tf.gather(tf.constant(first[:, tap], tf.int32), phase)
        weight = tf.gather(tf.constant(weights[:, tap]), phase)
        part = tf.gather(array_BHWC, tf.clip_by_value(index, 0, length - 1), axis=axis)
        part *= tf.reshape(weight, [-1, 1, 1] if axis == 1 else [-1, 1])
        total = part if total is None else total + part
    return total


@dataclass(frozen=True, eq=False)
class Member:
    """A Keras model that returns logits, with the normalisation of its input."""

    model: Any
    normalisation: Normalisation


class PredictFunction:
    """(image (B, H, W, C) of any dtype, valid (B, H, W) bool) → `Prediction` of the batch.

    Height and width must be multiples of the models' strides. The compiled graph includes normalisation, the
    average over models, symmetries and scales, and the choice of the class.

    Several threads may call it: they start the graph one after the other, but copy to and from the device in
    parallel. On a GPU, starting means queueing kernels, and memory is freed in queue order: two batches take
    the model's memory only once.

    Attributes:
        wanted: outputs besides class ids.
        classes: number of classes K.
        bytes_per_pixel: memory for a pixel of a window while it is computed.
        at_once: useful number of concurrent batches: two on a GPU, which computes one while the next is
            copied; one on a CPU, without copies.

    Args:
        device: device to compute on, such as GPU:1; None: TensorFlow's choice.
        reading: context manager for reading the models' variables; None: none needed.

    Raises:
        DeviceError: a batch does not fit into memory.
    """

    def __init__(
        self,
        members: Sequence[Member],
        wanted: ExtraOutputs,
        tta: Tta,
        device: str | None = None,
        reading: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.wanted = wanted
        self.run_on(device)
        measures = [_measures(member.model) for member in members]
        self.classes, self.bytes_per_pixel = measures[0][0], max(each for _, each in measures)
        self._several = len(members) > 1 or tta != Tta()

        def scores(image_BHWC: Any, valid_BHW: Any, whole: Any) -> Any:
            pixels = _Pixels(image_BHWC, valid_BHW, whole)
            with reading():
                if not self._several:
                    return members[0].model(pixels.normalise(members[0]), training=False)
                return _average(members, pixels, tta)

        def compiled(image_BHWC: Any, valid_BHW: Any, whole: Any, box_4: Any) -> Any:
            result = scores(image_BHWC, valid_BHW, whole)
            return _outputs(result, box_4, wanted, are_logits=not self._several)

        def weighted(image_BHWC: Any, valid_BHW: Any, whole: Any, rows_BH: Any, cols_BW: Any) -> Any:
            weights = rows_BH[:, :, tf.newaxis] * cols_BW[:, tf.newaxis, :]
            weigh = _weigh if self._several else _weigh_logits
            return per_pixel(weigh, scores(image_BHWC, valid_BHW, whole), weights)

        one_by_one = threading.Lock()
        self._plain, self._weighted = _Graphs(compiled, one_by_one), _Graphs(weighted, one_by_one)

    @property
    def workers(self) -> tuple[PredictFunction, ...]:
        """The function itself: one device."""
        return (self,)

    def __call__(self, image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_]) -> Prediction:
        return self.part(image_BHWC, valid_BHW, Window.of(Size(*valid_BHW.shape[1:])))

    def part(self, image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_], box: Window) -> Prediction:
        """Predict one part of each window; pixels around it are computed, but get no classes."""
        edges = np.array([box.row, box.row_stop, box.col, box.col_stop], np.int32)
        with memory_errors(_doing(valid_BHW), _REMEDY), self._place():
            outputs = self._plain(image_BHWC, valid_BHW, _all_valid(valid_BHW), edges)
            return Prediction(**{name: np.asarray(tensor) for name, tensor in outputs.items()})

    def _place(self) -> Any:
        return nullcontext() if self._device is None else tf.device(self._device)

    def run_on(self, device: str | None) -> None:
        """Compute on `device` from now on."""
        self._device = device
        on_gpu = device.startswith("GPU") if device else bool(tf.config.list_physical_devices("GPU"))
        self.at_once = 2 if on_gpu else 1

    def weighted(
        self,
        image_BHWC: NDArray[Any],
        valid_BHW: NDArray[np.bool_],
        rows_BH: NDArray[np.float32],
        cols_BW: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Return (B, H, W, K) probabilities × the weights of each window's rows and columns."""
        with memory_errors(_doing(valid_BHW), _REMEDY), self._place():
            found = self._weighted(image_BHWC, valid_BHW, _all_valid(valid_BHW), rows_BH, cols_BW)
            result: NDArray[np.float32] = np.asarray(found)  # not .numpy(), which copies
        return result


class OnSeveralDevices:
    """One function per device: `predictor.classify_all` sends batches to all of them at once."""

    def __init__(self, workers: Sequence[PredictFunction]) -> None:
        self.workers = tuple(workers)
        self.wanted, self.classes = workers[0].wanted, workers[0].classes
        self.bytes_per_pixel = workers[0].bytes_per_pixel

    def __call__(self, image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_]) -> Prediction:
        """Predict on the first device."""
        return self.workers[0](image_BHWC, valid_BHW)


def on_all_gpus(
    build: Callable[[], PredictFunction], devices: Sequence[str] | None = None
) -> PredictFunction | OnSeveralDevices:
    """Return functions on every visible GPU, each with its own model, or one on the CPU.

    Args:
        build: makes a model and its function on TensorFlow's current device.
        devices: other devices, such as CPU:1.
    """
    names = devices or [device.name for device in tf.config.list_logical_devices("GPU")]
    if len(names) < 2:
        return build()
    workers = []
    for name in names:
        with tf.device(name):
            worker = build()
        worker.run_on(name)
        workers.append(worker)
    return OnSeveralDevices(workers)


def on_replicas(model: Any, normalisation: Normalisation, devices: Devices) -> Predictor:
    """Return a model in training on each device of this worker, with that device's weights.

    Weights are not copied: each call predicts with the model's current weights. If the host must predict for
    the devices, the model has to be on the host. It says its confidence too, for pictures of the validation.
    """
    member, wanted = Member(model, normalisation), ExtraOutputs(confidence=True)
    if devices.predicts_on_host:
        return PredictFunction([member], wanted, Tta(), "CPU:0")

    def reading(replica: int) -> AbstractContextManager[Any]:
        return (
            nullcontext()
            if devices.replicas == 1
            else tf.distribute.ReplicaContext(devices.strategy, devices.first + replica)
        )

    workers = [
        PredictFunction([member], wanted, Tta(), name, partial(reading, replica))
        for replica, name in enumerate(devices.names)
    ]
    return workers[0] if len(workers) == 1 else OnSeveralDevices(workers)


class _Graphs:
    """A function compiled once per pixel type and number of bands, for windows of all shapes.

    One graph for all shapes saves compilation, and treats a window with the same operations as a whole
    raster. Calls are started one by one: there is no memory for two, and on a CPU XLA's programs must not run
    twice at once (`tensors`).
    """

    def __init__(self, function: Any, one_by_one: threading.Lock) -> None:
        self._function, self._one_by_one = function, one_by_one
        self._compiled: dict[Any, Any] = {}

    def __call__(self, *arrays: NDArray[Any]) -> Any:
        tensors = [tf.constant(array) for array in arrays]
        with self._one_by_one:
            return self._for(arrays)(*tensors)

    def _for(self, arrays: Sequence[NDArray[Any]]) -> Any:
        key = (arrays[0].dtype.name, arrays[0].shape[-1])
        if key not in self._compiled:
            specs = [tf.TensorSpec([None] * array.ndim, array.dtype) for array in arrays]
            specs[0] = tf.TensorSpec([None, None, None, key[1]], arrays[0].dtype)
            self._compiled[key] = tf.function(self._function, input_signature=specs, autograph=False)
        return self._compiled[key]


_REMEDY = "lower prediction.batch or prediction.window (--batch, --window-size)"


def _doing(valid_BHW: NDArray[np.bool_]) -> str:
    batch, height, width = valid_BHW.shape
    return f"at {batch} windows of {width}×{height} pixels"


def predict_function(
    model: Any, normalisation: Normalisation, wanted: ExtraOutputs | None = None, tta: str = "none"
) -> PredictFunction:
    """Return a Keras model that returns logits, as a function for `predictor`.

    Args:
        tta: symmetries and scales to average, see `tta.parse_tta`.
    """
    return ensemble_function([Member(model, normalisation)], wanted, tta)


def ensemble_function(
    members: Sequence[Member], wanted: ExtraOutputs | None = None, tta: str = "none"
) -> PredictFunction:
    """Return several models as one function: the mean of their probabilities with equal weights."""
    return PredictFunction(members, wanted or ExtraOutputs(), parse_tta(tta))


def _measures(model: Any) -> tuple[int, float]:
    """Return (classes, bytes per pixel) of a Keras model; 0 for a plain function in its place."""
    if not hasattr(model, "outputs"):
        return 0, 0.0
    return int(model.outputs[0].shape[-1]), inference_bytes_per_pixel(model)


def _all_valid(valid_BHW: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return 1 if all pixels have data, as a type that TensorFlow keeps in host memory.

    If a GPU computed it, the graph would have to wait for the GPU before it continues.
    """
    return np.array(valid_BHW.all(), np.int32)


@dataclass(frozen=True, eq=False)
class _Pixels:
    """(B, H, W, C) pixels as read, (B, H, W) mask of data, and a flag that is 1 if all have data."""

    image: Any
    valid: Any
    whole: Any

    def normalise(self, member: Member, *, after: Any = None) -> Any:
        """Return images normalised for a member, computed after `after`."""
        with _control_after(after):
            image = self.image if after is None else tf.identity(self.image)
        return tf.cond(
            self.whole > 0,
            lambda: member.normalisation.apply(image),  # a third of the time
            lambda: member.normalisation.apply(image, self.valid),
        )


def _average(members: Sequence[Member], pixels: _Pixels, tta: Tta) -> Any:
    """Return mean probabilities over models, scales and symmetries, in the memory of one at a time."""
    total: Any = None
    softmax = fuse(tf.nn.softmax)  # one for all: they come one after the other
    for member in members:
        pixels_BHWC = pixels.normalise(member, after=total)
        for scale in tta.scales:
            with _control_after(total):
                copy_BHWC = rescale(tf.identity(pixels_BHWC), scale)
            shares = _over_symmetries(member.model, softmax, copy_BHWC, tta.symmetries, total)
            found = rescale(shares, 1 / scale)
            total = found if total is None else total + found
    return total / (len(members) * tta.count)


def _over_symmetries(model: Any, softmax: Any, pixels_BHWC: Any, symmetries: str, before: Any) -> Any:
    total: Any = None
    for symmetry in SYMMETRIES[symmetries]:
        with _control_after(before if total is None else total):
            turned = symmetry.apply(tf.identity(pixels_BHWC), tf.transpose)
        scores = model(turned, training=False)
        found = symmetry.undo(per_pixel(softmax, scores), tf.transpose)
        total = found if total is None else total + found
    return total


def _control_after(total: Any) -> Any:
    return tf.control_dependencies([] if total is None else [total])


def _outputs(scores: Any, box_4: Any, wanted: ExtraOutputs, *, are_logits: bool) -> dict[str, Any]:
    """Return the parts of a `Prediction` within a box, from logits or probabilities, as tensors."""
    box = (slice(None), slice(box_4[0], box_4[1]), slice(box_4[2], box_4[3]))
    # Cut out afterwards: the class of a pixel costs less than a copy of its scores.
    outputs = {"ids": per_pixel(_largest, scores)[box]}
    if not wanted.confidence and wanted.probabilities is None:
        return outputs  # without a softmax
    # Fused for the bits, too: TensorFlow's own softmax has others at the end of an array than in its middle.
    share, boxed = (tf.nn.softmax if are_logits else tf.identity), scores[box]
    if wanted.confidence:
        with tf.control_dependencies(list(outputs.values())):  # XLA's programs not at once, see `tensors`
            outputs["confidence"] = per_pixel(lambda x: _as_byte(tf.reduce_max(share(x), axis=-1)), boxed)
    with tf.control_dependencies(list(outputs.values())):
        if wanted.probabilities == "uint8":
            outputs["probabilities"] = per_pixel(lambda x: _as_byte(share(x)), boxed)
        elif wanted.probabilities is not None:
            outputs["probabilities"] = per_pixel(lambda x: tf.cast(share(x), wanted.probabilities), boxed)
    return outputs


def _largest(scores: Any) -> Any:
    """Return the index of the largest value along the last axis (ties: the first), as uint8."""
    return tf.cast(tf.argmax(scores, axis=-1, output_type=tf.int32), tf.uint8)


def _weigh(probabilities: Any, weights: Any) -> Any:
    """Return probabilities or logits of each class times the pixels' weights; 0 without data."""
    return probabilities * weights[..., tf.newaxis]


def _weigh_logits(scores: Any, weights: Any) -> Any:
    return _weigh(tf.nn.softmax(scores), weights)


def _as_byte(probability: Any) -> Any:
    return tf.cast(tf.minimum(tf.round(probability * 255), 255), tf.uint8)
