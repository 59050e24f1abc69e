"""Pretrained weights of encoders: reading files of others without running them, names, bands, normalisation."""
