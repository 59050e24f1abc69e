"""QGIS as a witness: run by the system's Python, which has its libraries; nothing else of ours is imported.

`python3 qgis_look.py` reads JSON on standard input and prints JSON:
{"layers": [path], "pictures": {png: path}} → what QGIS sees.
It also saves styles (`saved_styles`) and computes `statistics`, as users do.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from osgeo import gdal
from qgis.core import QgsApplication, QgsMapRendererSequentialJob, QgsMapSettings, QgsRasterLayer
from qgis.PyQt.QtCore import QSize
from qgis.PyQt.QtGui import QColor


def seen(layer: Any) -> dict[str, Any]:
    """What QGIS makes of a layer."""
    renderer = layer.renderer()
    legend = [(label, colour.name()) for label, colour in renderer.legendSymbologyItems()]
    values = [each.value for each in renderer.classes()] if renderer.type() == "paletted" else None
    return {"legend": legend, "values": values, "description": layer.bandName(1)}


def draw(path: str, png: str) -> None:
    """Draw a raster in its own pixels, on magenta."""
    settings = QgsMapSettings()
    layer = QgsRasterLayer(path, "layer")
    settings.setLayers([layer])
    settings.setExtent(layer.extent())
    settings.setOutputSize(QSize(layer.width(), layer.height()))
    settings.setBackgroundColor(QColor("magenta"))
    job = QgsMapRendererSequentialJob(settings)
    job.start()
    job.waitForFinished()
    job.renderedImage().save(png)


def main() -> None:
    """Answer one question."""
    QgsApplication.setPrefixPath("/usr", True)
    application = QgsApplication([], False)
    application.initQgis()
    asked = json.load(sys.stdin)
    for path in asked.get("saved_styles", ()):
        QgsRasterLayer(path, "layer").saveDefaultStyle()
    for path in asked.get("statistics", ()):
        dataset = gdal.Open(path)
        dataset.GetRasterBand(1).ComputeStatistics(False)
        del dataset  # writes them
    for png, path in asked.get("pictures", {}).items():
        draw(path, png)
    layers = {path: seen(QgsRasterLayer(path, "layer")) for path in asked.get("layers", ())}
    print(json.dumps({"layers": layers}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
