"""Turn class maps into polygons and polygons into labels, in bounded memory. Needs the extra `vectors`."""
