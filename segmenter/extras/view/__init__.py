"""Viewer of maps: a page in the browser, served on the loopback from our own rasters."""
