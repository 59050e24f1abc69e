"""Procedural aerial imagery with exact land cover: what demo and tests stand on when the data is elsewhere."""

from datasets.imagery.cover import Cover
from datasets.imagery.scene import Rendering, render_town

__all__ = ["Cover", "Rendering", "render_town"]
