"""Access to GDAL: its files, faults, settings and silent behaviour."""
