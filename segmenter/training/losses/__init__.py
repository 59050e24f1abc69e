"""Losses whose sum over the replicas is the loss of the global batch, exactly: law 2, *equivalence*.

A term gives each replica its share. Ignored pixels (`labels.IGNORE`) count in no term.
"""

from segmenter.training.losses.total import ReplicaLoss, segmentation_loss

__all__ = ["ReplicaLoss", "segmentation_loss"]
