"""Land-cover segmentation of remote-sensing imagery: planned coverage, exact training, tiled maps."""
