// Keys: each does what a button does.

import { el } from "./dom.js";

const HELP = [
  ["Space", "held down: the image alone"],
  ["N, P", "next and previous place"],
  ["1 … 9", "a layer on or off"],
  ["Enter", "values of the pixel in the middle"],
  ["0", "all of the map"],
  ["X", "a pixel of the map for each of the screen"],
  ["arrows, +, −", "move, zoom"],
];

export function keys(page) {
  const isIn = (event, tags) => Boolean(event.target.closest?.(tags));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    const layer = page.shown.layers[Number(key) - 1];
    if (key === "n" || key === "N") page.places.step(1);
    else if (key === "p" || key === "P") page.places.step(-1);
    else if (isIn(event, "select, textarea, input:not([type=checkbox])")) return;
    else if ((key === " " || key === "Enter") && isIn(event, "input, button, summary")) return;
    else if (key === " ") page.blink(true);
    else if (key === "Enter") page.pixel.middle();
    else if (key === "0") page.show(page.shown);
    else if (key === "x" || key === "X") page.goTo(middle(page));
    else if (layer) page.toggle(layer);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keyup", (event) => event.key === " " && page.blink(false));
  return el(
    "details",
    { id: "keys" },
    el("summary", {}, "Keys"),
    el("dl", {}, ...HELP.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])),
  );
}

function middle(page) {
  const [x, y] = page.map.getView().getCenter();
  const [width, height] = page.map.getSize();
  // Whole pixels from the edge of the screen on, so that none is drawn across two.
  const whole = (value, side) => Math.floor(value) + (side % 2 ? 0.5 : 0);
  return { column: whole(x, width), row: whole(-y, height), resolution: 1 };
}
