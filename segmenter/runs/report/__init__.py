"""Report of a training as one HTML page that needs no network."""
