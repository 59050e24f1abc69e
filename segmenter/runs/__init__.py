"""Run directory: arrays with a digest, checkpoints, weights, resume, log."""
