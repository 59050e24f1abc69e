"""Written outputs of a call: rasters, codes, pictures."""
