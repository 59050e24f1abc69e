"""Polygons of class maps, and class maps of polygons, in bounded memory. Needs the extra `vectors`."""

INSTALL = "pip install 'coverage-segmenter[vectors]' (in a checkout: make vectors)"
"""What to do where a package of the extra is missing."""
