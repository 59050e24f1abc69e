import Map from "ol/Map.js";
import View from "ol/View.js";
import TileLayer from "ol/layer/Tile.js";
import TileImage from "ol/source/TileImage.js";
import TileGrid from "ol/tilegrid/TileGrid.js";
import Projection from "ol/proj/Projection.js";

const TILE = 256;

const state = await (await fetch("state")).json();
const shown = state.maps[0];
const extent = [0, -shown.rows, shown.columns, 0];
const projection = new Projection({ code: "pixels", units: "pixels", extent });
const resolutions = Array.from({ length: shown.levels + 1 }, (_, i) => 2 ** (shown.levels - i));
const tileGrid = new TileGrid({ extent, origin: [0, 0], resolutions, tileSize: TILE });
const layers = shown.layers.map((layer) => new TileLayer({
  source: new TileImage({
    projection, tileGrid, interpolate: false, transition: 0,
    tileUrlFunction: ([z, x, y]) => `tile/${shown.id}/${layer.id}/${shown.levels - z}/${y}/${x}?stamp=${shown.stamp}`,
  }),
}));
const view = new View({ projection, center: [shown.columns / 2, -shown.rows / 2], resolutions, constrainResolution: false });
const map = new Map({ target: "map", layers, view });
view.fit(extent);
setInterval(() => document.visibilityState === "visible" && fetch("alive"), 30000);
window.view = { map, state };
