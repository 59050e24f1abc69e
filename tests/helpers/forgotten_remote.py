"""Remote files as in a new process."""

from segmenter.raster.gdal import files
from segmenter.raster.remote import settings


def forget_all() -> None:
    """Forget all that is known of remote files, and have GDAL forget their bytes."""
    settings._states.clear()
    settings._tags.clear()
    settings._keeps_conditions.clear()
    files._gdal().VSICurlClearCache()
