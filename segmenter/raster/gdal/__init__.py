"""Deal with GDAL: its files, faults, settings, and what it does in silence."""
