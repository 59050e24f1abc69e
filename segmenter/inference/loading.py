"""Loading of a run's model, compiled to predict on every GPU; TensorFlow is imported only then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from segmenter.base.errors import CheckpointError
from segmenter.base.files import file_state
from segmenter.devices.setup import computing_on, overlooked_gpus, smallest_card
from segmenter.inference.prediction import ExtraOutputs, Predictor
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.model.size import check_weights, weight_shapes
from segmenter.runs.checkpoints import assign_weights, learned_weights
from segmenter.runs.ensemble import AnyRun, members
from segmenter.runs.records import calibrated_head
from segmenter.runs.run import RUN_FILE, Run

if TYPE_CHECKING:
    from segmenter.inference.function import Member, PredictFunction
    from segmenter.runs.checkpoints import Arrays

__all__ = ["KeptModels", "computing_on", "load_predictor", "overlooked_gpus", "smallest_card"]

_KEPT: ContextVar[KeptModels | None] = ContextVar("kept", default=None)


class KeptModels:
    """Cache of compiled models for later calls, valid while their weight files are unchanged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Any, tuple[Any, Predictor]] = {}

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let `load_predictor` use and fill this cache in the block."""
        token = _KEPT.set(self)
        try:
            yield
        finally:
            _KEPT.reset(token)

    def get(self, key: Any, weights: Any, load: Callable[[], Predictor]) -> Predictor:
        """Return the cached model of a key; load it if none with these weights is cached."""
        with self._lock:
            if key not in self._found or self._found[key][0] != weights:
                self._found.pop(key, None)  # before the next takes memory
                self._found[key] = weights, load()
            return self._found[key][1]


def load_predictor(
    run: AnyRun,
    wanted: ExtraOutputs | None = None,
    tta: str = "none",
    precision: Sequence[str] | None = None,
) -> Predictor:
    """Return the compiled model of a run or ensemble, on every visible GPU, or on the CPU.

    Within `KeptModels.used`, a cached model if possible.

    Args:
        wanted: outputs besides class ids.
        tta: symmetries and scales to average, see `tta.parse_tta`.
        precision: Keras dtype policy of each run; None: float32 for all.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or of another model.
        DeviceError: the device has no memory for the model; the function raises it for a batch.
    """
    wanted, policies = wanted or ExtraOutputs(), tuple(precision or ["float32"] * len(members(run)))
    models = _KEPT.get()
    if models is None:
        return _load(run, wanted, tta, policies)
    files = [member.weights_file().resolve() for member in members(run)]
    stamps = [
        (file, file_state(file), each.calibration()) for file, each in zip(files, members(run), strict=True)
    ]
    return models.get((wanted, tta, policies), stamps, lambda: _load(run, wanted, tta, policies))


def _load(run: AnyRun, wanted: ExtraOutputs, tta: str, policies: Sequence[str]) -> Predictor:
    from segmenter.devices.setup import let_memory_grow, load_tensorflow, memory_errors

    weights = [_weights(member) for member in members(run)]
    load_tensorflow()
    let_memory_grow()
    from segmenter.inference.function import ensemble_function, on_all_gpus

    def build() -> PredictFunction:
        models = [_member(*each) for each in zip(members(run), weights, policies, strict=True)]
        return ensemble_function(models, wanted, tta)

    with memory_errors("loading the model", "is another program using the GPU?"):
        return on_all_gpus(build)


def _weights(run: Run) -> Arrays:
    """Return calibrated weights; refuse misfits before TensorFlow is imported, if possible."""
    arrays = learned_weights(run.weights())
    if (calibration := run.calibration()) is not None:
        arrays |= calibrated_head(arrays, calibration)
    if (model := run.recipe.model).kind == "unet":
        shapes = weight_shapes(model, run.band_count, len(run.classes))
        check_weights(arrays, shapes, run.weights_file())
    return arrays


def _member(run: Run, arrays: Arrays, precision: str) -> Member:
    from segmenter.inference.function import Member
    from segmenter.model.building import build_model, shapes_of
    from segmenter.model.receptive_field import network_geometry

    model = build_model(run.recipe.model, run.band_count, len(run.classes), dtype=precision)
    if run.recipe.model.kind != "unet":
        check_weights(arrays, shapes_of(model), run.weights_file())
    assign_weights(model, arrays, "model", predicting=True)
    _check_geometry(run, network_geometry(model))
    return Member(model, run.normalisation)


def _check_geometry(run: Run, found: NetworkGeometry) -> None:
    """Refuse window settings too small for the model, or off its grid: seams would appear."""
    if not run.network.suits(found):
        raise CheckpointError(
            run.path / RUN_FILE,
            expected=f"stride {found.stride} and radius {found.radius}, which the model has",
            got=f"{run.network.stride} and {run.network.radius}",
            remedy="use the run.json that train.py wrote",
        )


def load_member(run: Run, precision: str = "float32") -> Member:
    """Return a run's model with its normalisation, on TensorFlow's default device: one GPU or the CPU.

    Args:
        precision: a Keras dtype policy.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or of another model.
        DeviceError: the device has no memory for the model.
    """
    from segmenter.devices.setup import let_memory_grow, load_tensorflow, memory_errors

    weights = _weights(run)
    load_tensorflow()
    let_memory_grow()
    with memory_errors("loading the model", "is another program using the GPU?"):
        return _member(run, weights, precision)
