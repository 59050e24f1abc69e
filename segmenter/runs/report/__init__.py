"""Report of a training as one HTML page that needs no network, and of several beside each other."""
