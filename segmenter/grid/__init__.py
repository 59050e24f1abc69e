"""Nouns of a grid: windows, resampling, ground sampling distance, labels, scenes."""
