"""What a GIS reads beside a map: QGIS' styles and projects, GDAL's attribute table; XML and nothing else."""
