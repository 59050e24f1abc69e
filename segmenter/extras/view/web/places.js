// Places to look at: lists of windows, the worst first; N and P walk.

import { el } from "./dom.js";
import { ask } from "./server.js";

export class Places {
  constructor(page) {
    this.page = page;
    this.lists = [];
    this.items = [];
    this.at = -1;
    this.select = el("select", { ariaLabel: "list of places", onchange: () => this.choose(this.select.value) });
    this.title = el("p", { className: "soft" });
    this.rows = el("ol", { className: "places" });
    const step = (by, text, key) => el("button", { type: "button", title: key, onclick: () => this.step(by) }, text);
    this.element = el(
      "section",
      { id: "places", hidden: true },
      el("h2", {}, "Where to look", step(-1, "previous", "P"), step(1, "next", "N")),
      this.select,
      this.title,
      this.rows,
    );
  }

  get id() {
    return this.list?.id;
  }

  news(lists) {
    const before = JSON.stringify(this.lists);
    this.lists = lists;
    this.element.hidden = !lists.length;
    if (before === JSON.stringify(lists)) return;
    this.select.replaceChildren(...lists.map((each) => el("option", { value: each.id }, each.title)));
    if (this.list) this.choose(this.list.id);
  }

  async choose(id) {
    this.list = this.lists.find((each) => each.id === id) ?? this.lists[0];
    if (!this.list) return;
    this.select.value = this.list.id;
    const { looked, of } = this.list;
    this.title.textContent = looked < of ? `${looked} of ${of} maps were looked at so far` : "";
    this.items = (await ask(`list/${this.list.id}`)) ?? [];
    this.at = -1;
    this.draw();
    if (this.page.shown) this.page.written();
  }

  draw() {
    this.rows.replaceChildren(
      ...this.items.map((item, i) =>
        el(
          "li",
          {},
          el(
            "button",
            { type: "button", onclick: () => this.go(i) },
            el("b", {}, item.title),
            item.detail ? el("span", {}, ` ${item.detail}`) : null,
          ),
        ),
      ),
    );
    if (!this.items.length && this.list.looked === this.list.of) this.title.textContent = "none";
  }

  step(by) {
    if (this.items.length) this.go((this.at + by + this.items.length) % this.items.length);
  }

  go(at) {
    this.rows.children[this.at]?.firstChild.removeAttribute("aria-current");
    this.at = at;
    const button = this.rows.children[at].firstChild;
    button.setAttribute("aria-current", "true");
    button.scrollIntoView({ block: "nearest" });
    const layer = this.page.shown.layers.find((each) => each.id === this.list.id);
    if (layer && !this.page.settings.get(layer).on) this.page.toggle(layer);
    this.page.lookAt(this.items[at]);
  }
}
