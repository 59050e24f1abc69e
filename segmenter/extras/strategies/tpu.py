"""Strategy over the cores of a TPU; only this module finds and starts TPUs."""

from __future__ import annotations

from segmenter.base.errors import DeviceError, shorten
from segmenter.config.devices import DistributionConfig
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices


def make_tpu(config: DistributionConfig, logical_devices: int | None = None) -> Devices:
    """Return the recipe's TPU as devices; this clears the state of other programs on it.

    Raises:
        DeviceError: the TPU is missing or does not answer, or `logical_devices` is set.
    """
    if logical_devices is not None:
        raise DeviceError(
            "--logical-devices", "distribution.strategy: tpu uses no CPU", remedy="leave one of both out"
        )
    import tensorflow as tf

    name = config.tpu or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        raise DeviceError(
            "distribution.strategy: tpu",
            expected=f"a TPU ({name}), found none ({_first_sentence(error)})",
            remedy="on a TPU VM install TensorFlow's package for TPUs, else name it with distribution.tpu, "
            "or use strategy: auto",
        ) from None
    tf.config.set_soft_device_placement(config.soft_placement)
    cores = strategy.extended.worker_devices
    names = [core.rpartition("device:")[2] if name == "local" else core for core in cores]
    used = tuple(Device(each, "TPU", "", each) for each in names)
    return Devices(strategy, used, predicts_on_host=True)


def _first_sentence(error: Exception) -> str:
    """Return what says what failed: the rest names TensorFlow's settings, in another order each time."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shorten(lines[0].partition(". ")[0].rstrip("."), 90) if lines else type(error).__name__
