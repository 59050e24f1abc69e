"""Files that a GIS reads beside a map: QGIS' styles, GDAL's attribute table; XML and nothing else."""
