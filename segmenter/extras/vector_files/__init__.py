"""Files of points and polygons, read and written: GeoPackage, GeoParquet and others."""
