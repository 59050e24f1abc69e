"use strict";
(function () {
  let charts, maps;
  // No bar of buttons, no zoom (a phone scrolls over the charts), and no look for a formula renderer.
  const config = {displayModeBar: false, displaylogo: false, typesetMath: false, responsive: false,
    scrollZoom: false, doubleClick: false, showTips: false};

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
  const copy = (value) => JSON.parse(JSON.stringify(value)); // Plotly writes into what it is given

  // Anew each time: a chart that Plotly only updates keeps margins that were right for its last width.
  function draw(id) {
    const {figures, titles, chosen} = charts[id];
    const {data: light, layout: white} = copy(figures[chosen]);
    const dark = darkness.matches && !paper;
    const data = dark ? recoloured(light, INK) : light, layout = dark ? recoloured(white, DARK) : white;
    const place = element(id);
    element(id + "-title").textContent = titles[chosen];
    layout.width = place.clientWidth;
    if (paper && layout.height < 1.6 * PAGE) layout.height = Math.min(layout.height, PAGE);
    Plotly.purge(place);
    Plotly.newPlot(place, data, layout, config);
  }

  // ------------------------------------------------------------------- maps of where a class lies
  const NOTHING = "#ffffff", LITTLE = "#c9ddf0", MUCH = "#08306b";

  function mapLayout(place, map) {
    const width = place.clientWidth;
    return {autosize: false, width, height: Math.round(width * map.aspect), margin: {l: 0, r: 0, t: 0, b: 0},
      plot_bgcolor: "#d4d4d4", paper_bgcolor: "#d4d4d4", dragmode: false, hoverlabel: {align: "left"},
      xaxis: {visible: false, fixedrange: true}, yaxis: {visible: false, fixedrange: true, autorange: "reversed"}};
  }

  // Every cell in the colour of the class that covers most of it.
  function largest(map) {
    const z = [], text = [], K = maps.names.length;
    for (let row = 0; row < map.rows; row++) {
      z.push([]);
      text.push([]);
      for (let col = 0; col < map.cols; col++) {
        let best = null;
        for (let c = 0; c < K; c++) {
          const share = map.share[c][row][col];
          if (share !== null && share > 0 && (best === null || share > map.share[best][row][col])) best = c;
        }
        z[row].push(best);
        text[row].push(best === null ? "" : maps.names[best] + ": " + map.share[best][row][col] + " %");
      }
    }
    const steps = maps.colours.flatMap((colour, c) => [[c / K, colour], [(c + 1) / K, colour]]);
    return {type: "heatmap", z, text, zmin: -0.5, zmax: K - 0.5, colorscale: steps, showscale: false,
      hoverongaps: false, hovertemplate: "%{text}<extra></extra>"};
  }

  // How much of every cell is class c; a trace of it is told from none.
  function shareOf(map, c) {
    const scale = [[0, NOTHING], [1e-9, LITTLE], [1, MUCH]];
    return {type: "heatmap", z: map.share[c], zmin: 0, zmax: maps.most[c] || 1, colorscale: scale, showscale: false,
      hoverongaps: false, hovertemplate: "%{z} %<extra>" + maps.names[c] + "</extra>"};
  }

  function drawMaps(choice) {
    const c = choice - 1; // the first choice is: all the classes
    maps.maps.forEach((map, i) => {
      const place = element("map-" + i);
      Plotly.react(place, [c < 0 ? largest(map) : shareOf(map, c)], mapLayout(place, map), config);
    });
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
