// Legend: classes on and off, and their share and hectares of what is in sight.

import { el, number, percent, swatch } from "./dom.js";
import { ask, offline } from "./server.js";

const PATIENCE = 200;

export class Legend {
  constructor(page) {
    this.page = page;
    this.cells = page.state.classes.map(() => el("td"));
    const rows = page.state.classes.map(({ id, name, colour }, at) => {
      const box = el("input", { type: "checkbox", checked: true, onchange: () => this.toggle(id, box.checked) });
      (this.boxes ??= []).push(box);
      return el("tr", {}, el("td", {}, el("label", {}, box, swatch(colour), name)), this.cells[at]);
    });
    this.caption = el("p", { className: "soft" });
    this.element = el("section", { id: "legend" }, el("h2", {}, "Classes in sight"), el("table", {}, ...rows), this.caption);
  }

  toggle(id, on) {
    const { hidden } = this.page.settings;
    if (on) hidden.delete(id);
    else hidden.add(id);
    this.page.hiddenChanged();
  }

  count() {
    const { hidden } = this.page.settings;
    this.boxes?.forEach((box, id) => (box.checked = !hidden.has(id)));
    clearTimeout(this.waiting);
    if (!offline) this.waiting = setTimeout(() => this.ask(), PATIENCE);
  }

  async ask() {
    const { page } = this;
    const found = await ask(`sight/${page.shown.id}/${page.window.join("/")}`);
    if (!found) return;
    for (const [at, cell] of this.cells.entries()) {
      const own = found.classes[at];
      const area = own?.hectares === null || !own?.share ? "" : ` · ${number(own.hectares, 3)} ha`;
      cell.textContent = own?.share ? percent(own.share) + area : "";
    }
    this.caption.textContent = found.exact ? "" : "counted in the overview";
  }
}
