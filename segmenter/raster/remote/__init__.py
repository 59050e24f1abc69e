"""Read rasters from servers: addresses, listing, patience."""
