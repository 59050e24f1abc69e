"""QGIS as a witness: run by the system's Python, which has its libraries; nothing else of ours is imported.

`python3 qgis_look.py` reads JSON on standard input and prints JSON:
{"layers": [path], "pictures": {png: path}, "legends": {png: path}} → what QGIS sees.
It also saves styles (`saved_styles`) and computes `statistics`, as users do.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from osgeo import gdal
from qgis.core import (
    QgsApplication,
    QgsLayerTree,
    QgsLayerTreeModel,
    QgsLegendRenderer,
    QgsLegendSettings,
    QgsMapRendererSequentialJob,
    QgsMapSettings,
    QgsRasterLayer,
    QgsRenderContext,
)
from qgis.PyQt.QtCore import QSize
from qgis.PyQt.QtGui import QColor, QImage, QPainter


def seen(layer: Any) -> dict[str, Any]:
    """What QGIS makes of a layer."""
    renderer = layer.renderer()
    legend = [(label, colour.name()) for label, colour in renderer.legendSymbologyItems()]
    box = layer.extent()
    return {
        "valid": layer.isValid(),
        "source": layer.source(),
        "crs": layer.crs().authid(),
        "renderer": renderer.type(),
        "legend": legend,
        "values": [each.value for each in renderer.classes()] if renderer.type() == "paletted" else None,
        "extent": [box.xMinimum(), box.yMinimum(), box.xMaximum(), box.yMaximum()],
        "description": layer.bandName(1),
    }


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


def draw_legend(path: str, png: str) -> None:
    """Draw the legend of a raster."""
    layer = QgsRasterLayer(path, path.rpartition("/")[2])
    tree = QgsLayerTree()
    tree.addLayer(layer)
    model = QgsLayerTreeModel(tree)  # to be kept: the renderer only points to it
    renderer = QgsLegendRenderer(model, QgsLegendSettings())
    size = renderer.minimumSize()
    dots = 6
    image = QImage(int(size.width() * dots) + 1, int(size.height() * dots) + 1, QImage.Format_RGB32)
    image.setDotsPerMeterX(dots * 1000)
    image.setDotsPerMeterY(dots * 1000)
    image.fill(QColor("white"))
    painter = QPainter(image)
    context = QgsRenderContext.fromQPainter(painter)
    context.setScaleFactor(dots)
    painter.scale(dots, dots)
    renderer.drawLegend(context)
    painter.end()
    image.save(png)


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
    for png, path in asked.get("legends", {}).items():
        draw_legend(path, png)
    layers = {path: seen(QgsRasterLayer(path, "layer")) for path in asked.get("layers", ())}
    print(json.dumps({"layers": layers}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
