// Switches of the layers: on and off, opacity, bands.

import { el } from "./dom.js";

export function layerControls(page) {
  const rows = page.shown.layers.filter((layer) => page.layers.has(layer.id)).map((layer, i) => layerRow(page, layer, i));
  const blink = el("button", { type: "button", title: "Space" }, "blink");
  for (const [event, hidden] of [["pointerdown", true], ["pointerup", false], ["pointerleave", false]]) {
    blink.addEventListener(event, () => page.blink(hidden));
  }
  page.controls.replaceChildren(el("h2", {}, "Layers", blink), ...rows.reverse());
}

function layerRow(page, layer, i) {
  const own = page.settings.get(layer);
  const box = el("input", { type: "checkbox", checked: own.on, onchange: () => page.toggle(layer) });
  const slider = el("input", {
    type: "range", min: 0, max: 1, step: 0.05, value: own.opacity, ariaLabel: `opacity of ${layer.title}`,
    oninput: (event) => {
      own.opacity = Number(event.target.value);
      page.applied(layer);
    },
  });
  const name = el("label", {}, box, " ", layer.title, el("kbd", {}, String(i + 1)));
  return el("div", { className: "layer", id: `layer-${layer.id}` }, name, slider, own.on ? bandChoice(page, layer, own) : null, own.on ? key(layer) : null);
}

/** Three choices for a picture of more bands than three, one for probabilities. */
function bandChoice(page, layer, own) {
  const count = layer.kind === "image" ? 3 : 1;
  if (layer.bands.length < 2 || (layer.kind === "image" && layer.bands.length < 3)) return null;
  const usual = layer.usual?.length === count ? layer.usual : [1, 2, 3];
  const choices = Array.from({ length: count }, (_, at) =>
    el(
      "select",
      {
        ariaLabel: count === 3 ? `band shown ${["red", "green", "blue"][at]}` : "class",
        onchange: () => {
          own.bands = choices.map((each) => Number(each.value));
          page.applied(layer);
        },
      },
      ...layer.bands.map((band, n) => el("option", { value: n + 1, selected: n + 1 === (own.bands[at] ?? usual[at]) }, band)),
    ),
  );
  return el("div", { className: "bands" }, ...choices);
}

function key(layer) {
  if (layer.kind === "amount") return el("p", { className: "soft" }, "0 ", el("span", { className: "ramp" }), " 1");
  if (layer.kind === "marks") return el("p", { className: "soft" }, el("span", { className: "swatch mark" }), layer.id === "errors" ? "map ≠ label" : "maps differ");
  return null;
}
