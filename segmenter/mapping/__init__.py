"""Maps of many rasters: each written whole or not at all, kept when finished, continued if interrupted."""
