"""Tests of what a GIS reads."""
