"""Run directory: arrays with a digest, checkpoints, weights, resuming, log."""
