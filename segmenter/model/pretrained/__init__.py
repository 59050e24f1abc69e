"""Pretrained weights of encoders: files of others read without running them, names, bands, normalisation."""
