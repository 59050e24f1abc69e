"""Conversion of class maps to polygons and back to labels, in bounded memory. Needs the extra `vectors`."""
