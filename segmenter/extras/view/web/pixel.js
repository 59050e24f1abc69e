// Values of the pixel that was clicked, or of the one in the middle.

import { el, number, percent, swatch } from "./dom.js";
import { colourAt, TILE } from "./layers.js";
import { ask, offline, tile } from "./server.js";

const HOW = {
  confidence: "predict with --confidence tells how sure the model is",
  probabilities: "predict with --probabilities uint8 tells those of each class",
};

export class Pixel {
  constructor(page) {
    this.page = page;
    this.body = el("div", { role: "status" });
    this.element = el("section", { id: "pixel" }, el("h2", {}, "Pixel"), this.body);
    this.clear();
  }

  clear() {
    this.body.replaceChildren(el("p", { className: "soft" }, "A click tells what is there; Enter, in the middle."));
  }

  middle() {
    this.read(...this.page.pixelAt(this.page.map.getView().getCenter()));
  }

  async read(column, row) {
    const { shown } = this.page;
    if (column < 0 || row < 0 || column >= shown.columns || row >= shown.rows) return this.clear();
    const facts = offline ? await this.within(row, column) : await ask(`value/${shown.id}/${row}/${column}`);
    if (facts) {
      this.draw(facts);
      this.element.scrollIntoView({ block: "nearest" });
    }
    return undefined;
  }

  /** What an exported page knows itself: the place, and classes by their colours. */
  async within(row, column) {
    const { shown, palette } = this.page;
    const move = shown.transform;
    const at = (i) => move && move[i] * (column + 0.5) + move[i + 1] * (row + 0.5) + move[i + 2];
    const layers = [];
    for (const { id, title } of shown.layers.filter((each) => each.kind === "classes")) {
      const picture = await tile(`tile/${shown.id}/${id}/0/${Math.floor(row / TILE)}/${Math.floor(column / TILE)}`);
      const colour = picture && colourAt(picture, column % TILE, row % TILE);
      const own = palette.findIndex((each) => each.join() === colour);
      if (own >= 0) layers.push({ id, title, class: own });
    }
    return { row, column, x: at(0), y: at(3), layers };
  }

  draw(facts) {
    const { shown } = this.page;
    const rows = facts.layers.flatMap((own) => this.rowOf(own));
    const having = new Set(facts.layers.map((own) => own.id));
    const missing = offline ? [] : Object.keys(HOW).filter((id) => !having.has(id)).map((id) => HOW[id]);
    if (facts.x !== null && facts.x !== undefined) rows.push([shown.crs ?? "x, y", `${number(facts.x)}, ${number(facts.y)}`]);
    if (facts.latitude !== null && facts.latitude !== undefined) {
      rows.push(["latitude, longitude", `${facts.latitude.toFixed(6)}, ${facts.longitude.toFixed(6)}`]);
    }
    rows.push(["row, column", `${facts.row}, ${facts.column}`]);
    this.body.replaceChildren(
      el("dl", {}, ...rows.flatMap(([name, ...value]) => [el("dt", {}, name), el("dd", {}, ...value)])),
      ...missing.map((text) => el("p", { className: "soft" }, text)),
    );
  }

  rowOf({ id, title, text, class: own, shares, values }) {
    const { classes } = this.page.state;
    if (text) return [[title, text]];
    if (own !== undefined) return [[title, swatch(classes[own].colour), classes[own].name]];
    const layer = this.page.shown.layers.find((each) => each.id === id);
    if (values) return [[title, values.map((value, i) => `${layer.bands[i]} ${number(value)}`).join(", ")]];
    if (shares.length === 1) return [[title, percent(shares[0])]];
    const order = shares.map((share, i) => [share, layer.bands[i]]).sort((a, b) => b[0] - a[0]);
    return [["probabilities", order.map(([share, name]) => `${name} ${percent(share)}`).join(", ")]];
  }
}
