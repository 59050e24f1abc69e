"""Procedural aerial imagery with exact land cover, for the demo and for tests without real data."""

from .canvas import Cover
from .scene import render_country, render_town

__all__ = ["Cover", "render_country", "render_town"]
