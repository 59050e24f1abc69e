"""Maps of many rasters: each whole or not at all, kept when it is finished, gone on with when it is not."""
