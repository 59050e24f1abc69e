"""Public Python API: the names that `segmenter` exports."""
