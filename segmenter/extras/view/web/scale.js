// A bar of metres on the ground, or of pixels where the map lies nowhere.

import { el } from "./dom.js";

const LONGEST = 160;

export class ScaleBar {
  constructor(page) {
    this.page = page;
    this.bar = el("span");
    this.element = el("div", { id: "scale", ariaLabel: "scale" }, this.bar);
    document.getElementById("map").append(this.element);
  }

  draw() {
    const { metres } = this.page.shown;
    const each = this.page.map.getView().getResolution() * (metres ?? 1);
    const power = 10 ** Math.floor(Math.log10(each * LONGEST));
    const length = [5, 2, 1].map((times) => times * power).find((own) => own <= each * LONGEST) ?? power;
    this.bar.style.width = `${length / each}px`;
    const unit = metres === null ? "pixels" : length >= 1000 ? "km" : length < 1 ? "cm" : "m";
    this.bar.textContent = `${+(length * ({ km: 1e-3, cm: 100 }[unit] ?? 1)).toPrecision(3)} ${unit}`;
  }
}
