"""Polygons of class maps, and class maps of polygons, in bounded memory. Needs the extra `vectors`."""

from segmenter.base.invocation import installation

INSTALL = installation("vectors")
"""What to do where a package of the extra is missing."""
