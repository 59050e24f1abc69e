"""Predictions of windows: reading, blending, memory budget, the compiled function."""
