// The page of maps: a map of pixels, and a panel with layers, classes, places and the values of a pixel.

import Feature from "ol/Feature.js";
import OlMap from "ol/Map.js";
import View from "ol/View.js";
import { defaults as defaultControls } from "ol/control/defaults.js";
import { fromExtent } from "ol/geom/Polygon.js";
import VectorLayer from "ol/layer/Vector.js";
import VectorSource from "ol/source/Vector.js";
import Stroke from "ol/style/Stroke.js";
import Style from "ol/style/Style.js";
import { readAddress, writeAddress } from "./address.js";
import { el } from "./dom.js";
import { keys } from "./keys.js";
import { extentOf, makeLayer, projectionOf, redraw, Settings } from "./layers.js";
import { Legend } from "./legend.js";
import { layerControls } from "./controls.js";
import { Places } from "./places.js";
import { Pixel } from "./pixel.js";
import { ask, GONE, offline, onFault } from "./server.js";
import { ScaleBar } from "./scale.js";

const FINEST = 1 / 64;
const FIRST = { image: { on: true, opacity: 1, bands: [] }, map: { on: true, opacity: 0.6, bands: [] } };

class Page {
  constructor(state) {
    this.state = state;
    this.settings = new Settings(structuredClone(FIRST));
    this.palette = state.classes.map((each) => each.colour);
    this.marks = new VectorSource({ wrapX: false });
    const outline = (color, width) => new Style({ stroke: new Stroke({ color, width }) });
    this.outline = new VectorLayer({ source: this.marks, style: [outline("#000", 5), outline("#fff", 2.5)], zIndex: 9 });
    this.map = new OlMap({
      target: "map",
      keyboardEventTarget: document,
      controls: defaultControls({ rotate: false, attribution: false }),
    });
    this.scale = new ScaleBar(this);
    this.legend = new Legend(this);
    this.pixel = new Pixel(this);
    this.places = new Places(this);
    this.controls = el("section", { id: "layers" });
    this.notes = el("section", { id: "notes", hidden: true });
    this.progress = el("p", { id: "progress", className: "soft", role: "status" });
    this.build();
  }

  build() {
    const { title, maps } = this.state;
    document.title = title;
    const choice = el(
      "select",
      { ariaLabel: "map", onchange: (event) => this.show(this.byId(event.target.value)) },
      ...maps.map((each) => el("option", { value: each.id }, each.name)),
    );
    this.choice = choice;
    document.getElementById("panel").append(
      el("header", {}, el("h1", {}, title), maps.length > 1 ? choice : null),
      this.notes,
      this.controls,
      this.legend.element,
      this.places.element,
      this.pixel.element,
      keys(this),
      this.progress,
    );
    this.map.on("moveend", () => this.moved());
    this.map.on("singleclick", (event) => this.pixel.read(...this.pixelAt(event.coordinate)));
    onFault((text) => this.note(text));
    this.remember(this.state);
    const from = readAddress();
    if (from.layers.length) {
      for (const own of Object.values(this.settings.of)) own.on = false;
      for (const { id, ...own } of from.layers) this.settings.of[id] = { on: true, ...own };
    }
    from.hidden.forEach((id) => this.settings.hidden.add(id));
    this.show(maps.find((each) => each.name === from.map) ?? maps[0], from.at);
    this.places.choose(from.list);
    if (!offline) this.keepAlive();
  }

  byId(id) {
    return this.state.maps.find((each) => each.id === id);
  }

  /** Show a map: all of it, or a place in it. */
  show(shown, at = null) {
    this.shown = shown;
    this.choice.value = shown.id;
    const projection = projectionOf(shown);
    this.layers = new Map();
    for (const layer of shown.layers) {
      const made = makeLayer(shown, layer, projection, this.settings, this.palette);
      if (made) this.layers.set(layer.id, made);
    }
    const extent = extentOf(shown);
    this.map.setLayers([...this.layers.values(), this.outline]);
    this.marks.clear();
    const [width, height] = this.map.getSize() ?? [800, 600];
    const whole = Math.max(shown.columns / width, shown.rows / height, FINEST);
    const view = new View({
      projection,
      center: [shown.columns / 2, -shown.rows / 2],
      resolution: whole * 1.02,
      maxResolution: Math.max(2 * whole, 1),
      minResolution: FINEST,
      enableRotation: false,
      showFullExtent: true,
    });
    this.map.setView(view);
    if (at) this.goTo(at);
    layerControls(this);
    this.pixel.clear();
    this.refreshed(this.state.making ?? []);
  }

  /** Look at a place of the map: a middle, and pixels of the raster for one of the screen. */
  goTo({ column, row, resolution }) {
    const view = this.map.getView();
    view.setResolution(resolution);
    view.setCenter([column, -row]);
  }

  /** Look at a window of a map with as much around it, and mark it. */
  lookAt({ map, row, column, height, width }) {
    if (map !== this.shown.id) this.show(this.byId(map));
    const extent = [column, -(row + height), column + width, -row];
    this.marks.clear();
    this.marks.addFeature(new Feature(fromExtent(extent)));
    const [x, y] = this.map.getSize();
    const resolution = Math.max(FINEST * 2, (3 * Math.max(width, 8)) / x, (3 * Math.max(height, 8)) / y);
    this.goTo({ column: column + width / 2, row: row + height / 2, resolution });
  }

  /** Column and row of the pixel at a place of the map's plane. */
  pixelAt([x, y]) {
    return [Math.floor(x), Math.floor(-y)];
  }

  /** Rows and columns in sight: first row, first column, and those behind the last. */
  get window() {
    const [left, bottom, right, top] = this.map.getView().calculateExtent(this.map.getSize());
    const inside = (value, most) => Math.min(Math.max(value, 0), most);
    const { rows, columns } = this.shown;
    return [
      inside(Math.floor(-top), rows),
      inside(Math.floor(left), columns),
      inside(Math.ceil(-bottom), rows),
      inside(Math.ceil(right), columns),
    ];
  }

  moved() {
    this.scale.draw();
    this.legend.count();
    this.written();
  }

  /** Write place and layers into the address. */
  written() {
    const view = this.map.getView();
    const [x, y] = view.getCenter();
    const on = this.shown.layers.filter((layer) => this.settings.get(layer).on);
    writeAddress({
      map: this.shown.name,
      at: { column: x, row: -y, resolution: view.getResolution() },
      layers: on.map((layer) => ({ id: layer.id, ...this.settings.get(layer) })),
      hidden: [...this.settings.hidden],
      list: this.places.id,
    });
  }

  /** Use the settings of a layer, which were changed. */
  applied(layer) {
    const made = this.layers.get(layer.id);
    const own = this.settings.get(layer);
    made?.setVisible(own.on);
    made?.setOpacity(own.opacity);
    if (made) redraw(made, layer, this.settings);
    this.written();
  }

  /** Switch a layer on or off. */
  toggle(layer) {
    const own = this.settings.get(layer);
    own.on = !own.on;
    this.applied(layer);
    layerControls(this);
  }

  /** Hide all but the image while a key or a button is held down. */
  blink(hidden) {
    for (const layer of this.shown.layers) {
      this.layers.get(layer.id)?.setVisible(this.settings.get(layer).on && !(hidden && layer.kind !== "image"));
    }
  }

  hiddenChanged() {
    this.shown.layers.forEach((layer) => this.applied(layer));
  }

  note(text) {
    if (this.faults?.has(text)) return;
    (this.faults ??= new Set()).add(text);
    this.remember(this.state);
  }

  /** Take what the program says of lists, overviews and what is missing. */
  remember(news) {
    Object.assign(this.state, news);
    const all = [...(this.faults ?? []), ...this.state.notes];
    this.notes.hidden = !all.length;
    this.notes.replaceChildren(
      ...all.slice(0, 4).map((text) => el("p", {}, text)),
      ...(all.length > 4 ? [el("details", {}, el("summary", {}, `${all.length - 4} more`), ...all.slice(4).map((t) => el("p", {}, t)))] : []),
    );
    this.places.news(this.state.lists);
    this.refreshed(this.state.making);
  }

  /** Draw tiles anew whose overview is made, and say what is being made. */
  refreshed(making) {
    const own = making.filter((each) => each.map === this.shown?.id);
    for (const { layer, version } of own) {
      const made = this.layers.get(layer);
      if (made && made.get("version") < version) {
        made.set("version", version);
        redraw(made, this.shown.layers.find((each) => each.id === layer), this.settings);
      }
    }
    const left = own.filter((each) => each.done < 1);
    const text = left.map((each) => `${each.layer} ${Math.floor(100 * each.done)} %`).join(", ");
    this.progress.textContent = text && `Thinned at first sight; overviews are being made: ${text}.`;
  }

  get isWaiting() {
    return this.state.making.some((each) => each.done < 1) || this.state.lists.some((each) => each.looked < each.of);
  }

  async keepAlive() {
    const waits = this.isWaiting ? 1500 : 30000;
    await new Promise((resolve) => setTimeout(resolve, waits));
    const news = await ask("alive");
    if (news) this.remember(news);
    this.keepAlive();
  }
}

const state = offline ? offline.state : await ask("state");
if (state) globalThis.page = new Page(state);
else document.body.append(el("p", {}, GONE));
