"""Procedural aerial imagery with exact land cover, for the demo and for tests without the real data."""

from datasets.synthetic.cover import Cover
from datasets.synthetic.scene import Rendering, render_country, render_town

__all__ = ["Cover", "Rendering", "render_country", "render_town"]
