"""Rasters on servers: addresses, listing, retries."""
