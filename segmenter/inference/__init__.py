"""From windows to predictions: reading, blending, memory budget, the compiled function."""
