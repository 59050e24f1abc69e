"""Networks, receptive field, BatchNorm and dropout over replicas, normalisation."""
