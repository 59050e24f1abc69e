"""Maps of many rasters: each whole or not at all, kept when finished, continued when interrupted."""
