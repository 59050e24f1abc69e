"""Land-cover segmentation of remote-sensing imagery: planned coverage, exact training, tiled maps."""

__version__ = "0.1.0"
