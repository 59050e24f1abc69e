"""Files that a GIS reads beside a map: QGIS styles and GDAL's attribute table, as plain XML."""
