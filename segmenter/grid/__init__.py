"""Basic types of pixel grids: windows, resampling, ground sampling distance, labels, scenes."""
