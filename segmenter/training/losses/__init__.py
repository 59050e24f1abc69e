"""Losses whose sum over replicas equals the loss of the global batch: law 2, *equivalence*.

A term returns each replica's share. Ignored pixels (`labels.IGNORE`) count in no term.
"""

from segmenter.training.losses.total import ReplicaLoss, segmentation_loss

__all__ = ["ReplicaLoss", "segmentation_loss"]
