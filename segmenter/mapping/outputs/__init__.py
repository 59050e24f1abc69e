"""Write what a call maps: rasters, codes, pictures."""
