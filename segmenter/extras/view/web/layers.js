// Layers of OpenLayers in a projection of pixels: x is the column, y the row, negative.

import TileLayer from "ol/layer/Tile.js";
import Projection from "ol/proj/Projection.js";
import ImageTile from "ol/source/ImageTile.js";
import TileGrid from "ol/tilegrid/TileGrid.js";
import { offline, tile } from "./server.js";

export const TILE = 256;
const GREY = [128, 128, 128, 255];

export const extentOf = (shown) => [0, -shown.rows, shown.columns, 0];

export function projectionOf(shown) {
  return new Projection({ code: `pixels of ${shown.id}`, units: "pixels", extent: extentOf(shown) });
}

/** Opacity, bands and more of a layer, by its id: kept when another map is shown. */
export class Settings {
  constructor(first) {
    this.of = first;
    this.hidden = new Set();
  }

  get(layer) {
    return (this.of[layer.id] ??= { on: false, opacity: layer.kind === "marks" ? 0.5 : 1, bands: [] });
  }
}

/** Draw a layer's tiles anew where bands, classes switched off or an overview are others than before. */
export function redraw(made, layer, settings) {
  const hidden = layer.kind === "classes" ? [...settings.hidden] : [];
  made.getSource().setKey(JSON.stringify([made.get("version"), settings.get(layer).bands, hidden]));
}

export function makeLayer(shown, layer, projection, settings, palette) {
  const levels = Array.from({ length: shown.levels + 1 }, (_, i) => shown.levels - i);
  const kept = offline ? levels.filter((level) => level >= (offline.finest[`${shown.id}/${layer.id}`] ?? 99)) : levels;
  if (!kept.length) return null;
  const tileGrid = new TileGrid({
    extent: extentOf(shown),
    origin: [0, 0],
    resolutions: kept.map((level) => 2 ** level),
    tileSize: TILE,
  });
  const own = settings.get(layer);
  const made = new TileLayer({ opacity: own.opacity, visible: own.on, preload: 0, cacheSize: 128 });
  made.set("version", 0);
  made.setSource(
    new ImageTile({
      projection,
      tileGrid,
      interpolate: false,
      transition: 0,
      wrapX: false,
      loader: async (z, x, y, { signal }) => {
        const path = `tile/${shown.id}/${layer.id}/${kept[z]}/${y}/${x}`;
        const query = `stamp=${shown.stamp}&v=${made.get("version")}&bands=${settings.get(layer).bands.join(",")}`;
        const picture = await tile(path, query, signal);
        if (signal?.aborted) throw new Error("aborted");
        if (!picture) return greyTile();
        return layer.kind === "classes" ? withoutHidden(picture, settings.hidden, palette) : picture;
      },
    }),
  );
  redraw(made, layer, settings);
  return made;
}

function canvasOf(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return [canvas, canvas.getContext("2d", { willReadFrequently: true })];
}

/** The colour of a picture's pixel, as `red,green,blue`. */
export function colourAt(picture, x, y) {
  const [, context] = canvasOf(picture.width, picture.height);
  context.drawImage(picture, 0, 0);
  return [...context.getImageData(x, y, 1, 1).data.slice(0, 3)].join();
}

function greyTile() {
  const [canvas, context] = canvasOf(TILE, TILE);
  context.fillStyle = `rgba(${GREY.join(",")})`;
  context.fillRect(0, 0, TILE, TILE);
  return canvas;
}

/** A tile without the pixels of classes that are switched off; a class is known by its colour, which it has alone. */
function withoutHidden(picture, hidden, palette) {
  if (!hidden.size) return picture;
  const gone = new Set([...hidden].map((id) => (palette[id][0] << 16) | (palette[id][1] << 8) | palette[id][2]));
  const [canvas, context] = canvasOf(picture.width, picture.height);
  context.drawImage(picture, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  const data = pixels.data;
  for (let i = 0; i < data.length; i += 4) {
    if (gone.has((data[i] << 16) | (data[i + 1] << 8) | data[i + 2])) data[i + 3] = 0;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}
