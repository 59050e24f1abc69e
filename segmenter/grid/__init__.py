"""Hold the nouns of a grid: windows, resampling, ground sampling distance, labels, scenes."""
