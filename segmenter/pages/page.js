"use strict";
(function () {
  let charts, maps;
  const PAGE = 860; // pixels: what a page of paper has room for below a heading

  // Charts are drawn in the colours of paper: in dark mode those of texts, grounds and lines are replaced, of data
  // only the ink: white may be a class.
  const INK = {"#1b1f24": "#e8eaed"};
  const DARK = {...INK, "#ffffff": "#15191e", "#52606d": "#a8b3bf", "#e3e7eb": "#39424c", "#c9ced4": "#39424c"};
  const darkness = window.matchMedia("screen and (prefers-color-scheme: dark)");
  const recoloured = (value, by) => typeof value === "string" ? by[value] || value
    : Array.isArray(value) ? value.map((each) => recoloured(each, by))
    : value && typeof value === "object"
      ? Object.fromEntries(Object.entries(value).map(([key, each]) => [key, recoloured(each, by)])) : value;

  const element = (id) => document.getElementById(id);
  const copy = (value) => JSON.parse(JSON.stringify(value));

  function draw(id) {
    const {figures, titles, chosen} = charts[id];
    const {data: light, layout: white} = copy(figures[chosen]);
    const dark = darkness.matches && !paper;
    const data = dark ? recoloured(light, INK) : light, layout = dark ? recoloured(white, DARK) : white;
    element(id + "-title").textContent = titles[chosen];
    if (paper && layout.height < 1.6 * PAGE) layout.height = Math.min(layout.height, PAGE);
    charted.draw(element(id), {data, layout});
  }

  // ------------------------------------------------------------------- maps of where a class lies
  const NOTHING = "#ffffff", LITTLE = "#c9ddf0", MUCH = "#08306b", NO_LABEL = "#d4d4d4";

  // Every cell: the class that covers most of it, or none.
  function largest(map) {
    return map.share[0].map((cells, row) => cells.map((_, col) => map.share.reduce((best, plane, c) =>
      plane[row][col] > (best === null ? 0 : map.share[best][row][col]) ? c : best, null)));
  }

  // A trace of a class is told from none.
  function colourOf(c, value) {
    if (value === null) return NO_LABEL;
    if (c < 0) return maps.colours[value];
    return value <= 0 ? NOTHING : charted.blended([[0, LITTLE], [1, MUCH]], Math.min(1, value / (maps.most[c] || 1)));
  }

  function textOf(map, c, row, col, value) {
    if (value === null) return "no labels";
    return c < 0 ? maps.names[value] + ": " + map.share[value][row][col] + " %" : maps.names[c] + ": " + value + " %";
  }

  function drawMap(place, map, c) {
    const canvas = document.createElement("canvas"), z = c < 0 ? largest(map) : map.share[c];
    [canvas.width, canvas.height] = [map.cols, map.rows];
    const pen = canvas.getContext("2d");
    z.forEach((cells, row) => cells.forEach((value, col) => {
      pen.fillStyle = colourOf(c, value);
      pen.fillRect(col, row, 1, 1);
    }));
    canvas.style.aspectRatio = String(1 / map.aspect);
    canvas.addEventListener("mousemove", (event) => {
      const row = Math.min(map.rows - 1, Math.floor(event.offsetY / canvas.clientHeight * map.rows));
      const col = Math.min(map.cols - 1, Math.floor(event.offsetX / canvas.clientWidth * map.cols));
      canvas.title = textOf(map, c, row, col, z[row][col]);
    });
    place.cells = z;
    place.replaceChildren(canvas);
  }

  function drawMaps(choice) {
    const c = choice - 1; // the first choice is: all the classes
    maps.maps.forEach((map, i) => drawMap(element("map-" + i), map, c));
    element("map-title").textContent = maps.titles[choice];
    element("map-legend-all").hidden = c >= 0;
    element("map-legend-one").hidden = c < 0;
    if (c >= 0) element("map-most").textContent = maps.mostText[c];
  }

  // ------------------------------------------------------------------------------------ screen and paper
  let paper = false;

  function fit() {
    for (const id of Object.keys(charts)) draw(id);
    if (maps) drawMaps(Number(element("map-choice").value));
  }

  // Charts of a screen's width would be cut off on paper. Drawing anew must end before this returns.
  function toPaper(on) {
    if (paper === on) return;
    paper = on;
    document.body.classList.toggle("paper", on);
    fit();
  }

  // Draw what the page has; again after a served page has got new parts.
  function start() {
    ({charts, maps} = JSON.parse(element("data").textContent));
    fit();
    for (const choice of document.querySelectorAll("select[data-chart]")) {
      choice.addEventListener("change", () => {
        charts[choice.dataset.chart].chosen = Number(choice.value);
        draw(choice.dataset.chart);
      });
    }
    if (maps) {
      const choice = element("map-choice");
      choice.addEventListener("change", () => drawMaps(Number(choice.value)));
    }
  }

  start();
  document.addEventListener("parts", start);
  let waiting = 0, width = window.innerWidth;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (paper || width === window.innerWidth) return; // a phone's bars come and go: only the height changes
      width = window.innerWidth;
      fit();
    }, 120);
  });
  darkness.addEventListener("change", fit);
  window.addEventListener("beforeprint", () => toPaper(true));
  window.addEventListener("afterprint", () => toPaper(false));
  window.matchMedia("print").addEventListener("change", (event) => toPaper(event.matches));
  document.documentElement.dataset.drawn = "yes";
})();
