"""Pretrained encoder weights: foreign files read without running code, names, bands, normalisation."""
