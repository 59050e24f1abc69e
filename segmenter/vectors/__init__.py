"""Polygons of class maps, of any raster size in bounded memory. Needs the extra `vectors`."""
