"use strict";
// Charts as SVG: lines, bars and heat maps, from figures of Plotly's form, as far as the reports use it.
const charted = (function () {
  const SVG = "http://www.w3.org/2000/svg", FONT = "system-ui, sans-serif";
  const DASHES = {dot: "2 3", dash: "8 5"};
  const pen = document.createElement("canvas").getContext("2d");
  let patterns = 0;

  // Texts come as `parts.label` writes them: characters that could be markup are entities.
  const decoded = (text) => String(text).replace(/&#(\d+);/g, (_, code) => String.fromCodePoint(Number(code)));
  const spoken = (text) => decoded(text.replace(/<extra><\/extra>/g, "").replace(/<br>/g, "\n"));

  function add(parent, tag, attributes, text) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  function widthOf(text, size) {
    pen.font = size + "px " + FONT;
    return pen.measureText(text).width;
  }

  // As "," or ".2f" or ".4g" of Plotly's templates.
  function formatted(value, form) {
    if (form === "," || form === ",d") return Math.round(value).toLocaleString("en");
    const digits = Number((form || ".3g").match(/\d+/)[0]);
    return (form || "").endsWith("f") ? value.toFixed(digits) : String(Number(value.toPrecision(digits)));
  }

  function hoverOf(trace, i, value) {
    if (trace.hoverinfo === "skip" || !trace.hovertemplate) return "";
    const fields = {x: value.x, y: value.y, customdata: trace.customdata && trace.customdata[i]};
    return spoken(trace.hovertemplate.replace(/%\{(\w+)(?::([^}]*))?\}/g, (_, name, form) =>
      name === "customdata" ? fields.customdata || "" : formatted(fields[name], form)));
  }

  const named = (node, text) => { if (text) add(node, "title", {}, text); };

  // ------------------------------------------------------------------------------------------- axes
  function valuesOf(data, axis) {
    const other = axis === "x" ? "h" : "v", found = [];
    for (const trace of data) {
      const list = trace.type === "heatmap" ? [-0.5, (axis === "x" ? trace.z[0].length : trace.z.length) - 0.5]
        : trace[axis] || [];
      found.push(...list.filter((v) => v !== null));
      if (trace.type === "bar") {
        if ((trace.orientation || "v") === other) found.push(0);
        else found.push(...list.map((v) => v - 0.6), ...list.map((v) => v + 0.6));
      }
    }
    return found;
  }

  function scaleOf(axis, data, name, shapes = []) {
    const log = axis.type === "log", place = (v) => log ? Math.log10(v) : v;
    let [low, high] = axis.range || [];
    if (low === undefined) {
      const drawn = shapes.filter((shape) => shape.yref !== "paper").flatMap((shape) => [shape[name + "0"], shape[name + "1"]]);
      const found = [...valuesOf(data, name), ...drawn].map(place);
      [low, high] = [Math.min(...found), Math.max(...found)];
      if (!found.length) [low, high] = [0, 1];
      if (axis.rangemode === "tozero") [low, high] = [Math.min(0, low), high + 0.05 * (high - Math.min(0, low) || 1)];
      else if (!data.some((trace) => trace.type !== "scatter")) {
        const room = 0.05 * (high - low || 1);
        [low, high] = [low - room, high + room];
      }
    }
    return {low, high, place, axis};
  }

  function ticksOf(scale) {
    if (scale.axis.showticklabels === false) return [];
    const {axis, low, high, place} = scale, [least, most] = [Math.min(low, high), Math.max(low, high)];
    let values = axis.tickvals, texts = axis.ticktext;
    if (!values) {
      let step = axis.dtick;
      if (!step) {
        const rough = (most - least) / (axis.nticks || 6), power = 10 ** Math.floor(Math.log10(rough));
        step = [1, 2, 5, 10].find((times) => times * power >= rough * 0.999) * power;
      }
      values = [];
      for (let k = Math.ceil(least / step - 1e-9); k * step <= most + 1e-9 * step; k++) values.push(Number((k * step).toPrecision(12)));
      texts = values.map((v) => (axis.tickformat ? formatted(v, axis.tickformat) : formatted(v, ".6g"))
        + (axis.ticksuffix || ""));
    }
    return values.map((value, i) => ({value, text: decoded(texts[i])}))
      .filter(({value}) => place(value) >= least - 1e-9 && place(value) <= most + 1e-9);
  }

  // ----------------------------------------------------------------------------------------- legends
  function legendOf(data, layout) {
    if (!layout.showlegend) return [];
    return data.filter((trace) => trace.name !== undefined && trace.showlegend !== false);
  }

  function legendRows(entries, width) {
    const rows = [[]];
    let used = 0;
    for (const trace of entries) {
      const need = 34 + widthOf(decoded(trace.name), 12) + 14;
      if (used + need > width && rows.at(-1).length) { rows.push([]); used = 0; }
      rows.at(-1).push({trace, x: used});
      used += need;
    }
    return rows;
  }

  function drawLegend(svg, rows, left, top, font, look) {
    rows.forEach((row, i) => row.forEach(({trace, x}) => {
      const y = top + 20 * i + 8, group = add(svg, "g", {class: "legend-entry"});
      if (trace.type === "bar") add(group, "rect", {x: left + x + 8, y: y - 6, width: 12, height: 12, ...look.fill(trace.marker, 0)});
      if (trace.mode && trace.mode.includes("lines")) {
        add(group, "path", {d: `M${left + x} ${y}h26`, fill: "none", ...strokeOf(trace.line)});
      }
      if (trace.mode && trace.mode.includes("markers")) symbol(group, trace.marker || {}, 0, left + x + 13, y, trace.line);
      add(group, "text", {x: left + x + 32, y: y + 4, "font-size": 12, fill: font}, decoded(trace.name));
    }));
  }

  // ------------------------------------------------------------------------------------------ traces
  const strokeOf = (line = {}) => ({stroke: line.color || "#0072b2", "stroke-width": line.width === undefined ? 2 : line.width,
    "stroke-dasharray": DASHES[line.dash], "stroke-linejoin": "round"});

  function symbol(group, marker, i, x, y, line) {
    const kind = Array.isArray(marker.symbol) ? marker.symbol[i] : marker.symbol || "circle";
    const r = (marker.size || 7) / 2, colour = marker.color || (line && line.color) || "#0072b2";
    const edge = marker.line ? {stroke: marker.line.color || colour, "stroke-width": marker.line.width} : {};
    const open = {fill: "none", stroke: colour, "stroke-width": (marker.line && marker.line.width) || 2};
    if (kind === "line-ns-open") return add(group, "path", {d: `M${x} ${y - r}v${2 * r}`, ...open});
    if (kind === "x") return add(group, "path", {d: `M${x - r} ${y - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`, ...open});
    if (kind === "diamond") {
      return add(group, "path", {d: `M${x} ${y - r * 1.2}l${r * 1.2} ${r * 1.2}l${-r * 1.2} ${r * 1.2}l${-r * 1.2} ${-r * 1.2}z`, fill: colour, ...edge});
    }
    if (kind === "square") return add(group, "rect", {x: x - r, y: y - r, width: 2 * r, height: 2 * r, fill: colour, ...edge});
    return add(group, "circle", {cx: x, cy: y, r, ...(kind === "circle-open" ? open : {fill: colour, ...edge})});
  }

  function scatter(group, trace, X, Y) {
    const points = trace.x.map((x, i) => ({i, x, y: trace.y[i]}));
    const known = ({x, y}) => x !== null && y !== null && x !== undefined && y !== undefined;
    const lines = (trace.mode || "lines").includes("lines"), closed = trace.fill === "toself";
    const pieces = [[]];
    for (const each of points) known(each) ? pieces.at(-1).push(each) : pieces.push([]);
    if (lines) {
      for (const piece of pieces.filter((each) => each.length)) {
        const d = "M" + piece.map(({x, y}) => X(x).toFixed(1) + " " + Y(y).toFixed(1)).join("L") + (closed ? "z" : "");
        const fill = closed ? {fill: trace.fillcolor || trace.line.color, "fill-opacity": trace.fillcolor ? 1 : 0.35} : {fill: "none"};
        const path = add(group, "path", {d, class: "curve", ...fill, ...strokeOf(trace.line)});
        if (closed) named(path, hoverOf(trace, piece[0].i, piece[0]));
      }
    }
    const marks = (trace.mode || "").includes("markers");
    for (const each of closed ? [] : points.filter(known)) {
      const text = hoverOf(trace, each.i, each), [x, y] = [X(each.x), Y(each.y)];
      if (trace.error_x) {
        const [a, b] = [X(each.x - trace.error_x.arrayminus[each.i]), X(each.x + trace.error_x.array[each.i])];
        const d = `M${a} ${y}H${b}M${a} ${y - 4}v8M${b} ${y - 4}v8`;
        add(group, "path", {d, fill: "none", stroke: trace.error_x.color, "stroke-width": 2});
      }
      if (marks) named(symbol(group, trace.marker || {}, each.i, x, y, trace.line), text);
      else if (text) named(add(group, "circle", {cx: x, cy: y, r: 6, fill: "transparent"}), text);
    }
  }

  function bars(group, trace, X, Y, at, count, gap, font, look) {
    const flat = trace.orientation === "h", thick = (1 - gap) / count;
    const size = (trace.textfont && trace.textfont.size) || 12;
    trace.x.forEach((_, i) => {
      const [along, value] = flat ? [trace.y[i], trace.x[i]] : [trace.x[i], trace.y[i]];
      if (value === null) return;
      const side = flat ? Y : X, length = flat ? X : Y, first = along - (1 - gap) / 2 + at * thick;
      const [a, b] = [side(first), side(first + thick)].sort((p, q) => p - q), [zero, end] = [length(0), length(value)];
      const [from, long] = [Math.min(zero, end), Math.abs(end - zero)];
      const box = flat ? {x: from, y: a, width: long, height: b - a} : {x: a, y: from, width: b - a, height: long};
      named(add(group, "rect", {class: "point", ...box, ...look.fill(trace.marker, i)}), hoverOf(trace, i, {x: trace.x[i], y: trace.y[i]}));
      const text = trace.text ? decoded(trace.text[i]) : "", wide = widthOf(text, size);
      if (!text || (!flat && wide > (b - a) * 1.25)) return;
      const inside = trace.textposition === "auto" && long > wide + 10, colour = look.colour(trace.marker, i);
      const place = flat ? {x: end + (inside ? -5 : 4), y: (a + b) / 2 + size * 0.36, "text-anchor": inside ? "end" : "start"}
        : {x: (a + b) / 2, y: end - 4, "text-anchor": "middle"};
      add(group, "text", {...place, "font-size": size, fill: inside ? look.over(colour) : font}, text);
    });
  }

  function blended(scale, share) {
    const next = Math.max(1, scale.findIndex(([at]) => at >= share)), [[a, low], [b, high]] = [scale[next - 1], scale[next]];
    const t = b > a ? (share - a) / (b - a) : 0;
    const part = (text, i) => parseInt(text.slice(i, i + 2), 16);
    return "#" + [1, 3, 5].map((i) => Math.round(part(low, i) + t * (part(high, i) - part(low, i))).toString(16).padStart(2, "0")).join("");
  }

  function heat(group, trace, X, Y, look) {
    const {z, zmin, zmax, xgap = 0, ygap = 0} = trace;
    z.forEach((row, r) => row.forEach((value, c) => {
      if (value === null) return;
      const [x0, x1] = [X(c - 0.5), X(c + 0.5)].sort((p, q) => p - q), [y0, y1] = [Y(r - 0.5), Y(r + 0.5)].sort((p, q) => p - q);
      const colour = blended(trace.colorscale, Math.min(1, Math.max(0, (value - zmin) / (zmax - zmin))));
      const box = {x: x0, y: y0, width: Math.max(0.5, x1 - x0 - xgap), height: Math.max(0.5, y1 - y0 - ygap)};
      const cell = add(group, "rect", {class: "cell", ...box, fill: colour});
      if (trace.customdata) named(cell, spoken(trace.customdata[r][c]));
      const text = trace.texttemplate ? decoded(trace.text[r][c]) : "";
      if (text && widthOf(text, 11) <= x1 - x0) {
        add(group, "text", {x: (x0 + x1) / 2, y: (y0 + y1) / 2 + 4, "font-size": 11, "text-anchor": "middle", fill: look.over(colour), "pointer-events": "none"}, text);
      }
    }));
  }

  function colourBar(svg, trace, left, top, height, font) {
    const id = "ramp-" + ++patterns, ramp = add(svg, "linearGradient", {id, x1: 0, x2: 0, y1: 1, y2: 0});
    for (const [at, colour] of trace.colorscale) add(ramp, "stop", {offset: at, "stop-color": colour});
    add(svg, "rect", {x: left, y: top, width: 12, height, fill: `url(#${id})`});
    for (let percent = 0; percent <= 100; percent += 25) {
      add(svg, "text", {x: left + 17, y: top + height * (1 - percent / 100) + (percent === 100 ? 10 : percent ? 4 : 0), "font-size": 12, fill: font}, percent + " %");
    }
  }

  // Black or white, whichever is read better over a colour.
  function over(colour) {
    const linear = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000000" : "#fefefe";
  }

  function looks(svg) {
    const known = {}, colour = (marker, i) => Array.isArray(marker.color) ? marker.color[i] : marker.color;
    function fill(marker, i) {
      const own = colour(marker, i), shape = marker.pattern && marker.pattern.shape;
      const edge = marker.line ? {stroke: marker.line.color, "stroke-width": marker.line.width} : {};
      if (!shape) return {fill: own, ...edge};
      if (!known[own + shape]) {
        const id = known[own + shape] = "pattern-" + ++patterns;
        const tile = add(svg, "pattern", {id, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"});
        add(tile, "rect", {width: 8, height: 8, fill: own});
        add(tile, "path", {d: shape === "x" ? "M0 1h8M1 0v8" : "M1 0v8", stroke: "#fefefe", "stroke-width": 2});
      }
      return {fill: `url(#${known[own + shape]})`, ...edge};
    }
    return {fill, colour, over};
  }

  // ------------------------------------------------------------------------------------------- charts
  function framed(svg, layout, scales, ticks, box, font) {
    const [X, Y] = box.to, grid = layout.xaxis.gridcolor, small = {"font-size": 12, fill: font};
    const ground = add(svg, "g", {class: "frame"});
    if (layout.plot_bgcolor) add(ground, "rect", {...box.plot, fill: layout.plot_bgcolor});
    for (const {value, text} of ticks[0]) {
      const x = X(value), up = layout.xaxis.tickangle === -90, y = box.plot.y + box.plot.height;
      if (layout.xaxis.showgrid !== false) add(ground, "path", {d: `M${x} ${box.plot.y}V${y}`, stroke: grid});
      const turned = up ? {"text-anchor": "end", transform: `rotate(-90 ${x} ${y + 6})`, x: x, y: y + 10} : {"text-anchor": "middle", x, y: y + 16};
      add(add(ground, "g", {class: "xtick"}), "text", {...turned, ...small}, text);
    }
    for (const {value, text} of ticks[1]) {
      const y = Y(value);
      if (layout.yaxis.showgrid !== false) add(ground, "path", {d: `M${box.plot.x} ${y}h${box.plot.width}`, stroke: grid});
      add(add(ground, "g", {class: "ytick"}), "text", {x: box.plot.x - 6, y: y + 4, "text-anchor": "end", ...small}, text);
    }
    const middle = [box.plot.x + box.plot.width / 2, box.plot.y + box.plot.height / 2], title = {"font-size": 13, "text-anchor": "middle", fill: font};
    if (layout.xaxis.title.text) add(ground, "text", {x: middle[0], y: box.below - 4, ...title}, decoded(layout.xaxis.title.text));
    if (layout.yaxis.title.text) {
      add(ground, "text", {x: 12, y: middle[1], transform: `rotate(-90 12 ${middle[1]})`, ...title}, decoded(layout.yaxis.title.text));
    }
  }

  function marked(svg, layout, scales, box) {
    const [X, Y] = box.to, paper = (y) => box.plot.y + (1 - y) * box.plot.height;
    for (const shape of layout.shapes || []) {
      const to = shape.yref === "paper" ? paper : Y;
      add(svg, "path", {d: `M${X(shape.x0)} ${to(shape.y0)}L${X(shape.x1)} ${to(shape.y1)}`, fill: "none", ...strokeOf(shape.line)});
    }
    for (const note of layout.annotations || []) {
      const x = scales[0].axis.type === "log" ? X(10 ** note.x) : X(note.x);
      const anchor = {right: "end", left: "start"}[note.xanchor] || "middle";
      const shift = anchor === "end" ? -3 : anchor === "start" ? 3 : 0, half = widthOf(note.text, note.font.size) / 2;
      const inside = anchor === "middle" ? Math.min(Math.max(x, half), box.width - half) : x;
      add(svg, "text", {x: inside + shift, y: (note.yref === "paper" ? paper : Y)(note.y) - 3 - (note.yshift || 0), "font-size": note.font.size, fill: note.font.color, "text-anchor": anchor}, decoded(note.text));
    }
  }

  function equalised(scales, plot) {
    const [perX, perY] = [(scales[0].high - scales[0].low) / plot.width, (scales[1].high - scales[1].low) / plot.height];
    const [small, side, per] = perX < perY ? [scales[0], plot.width, perY] : [scales[1], plot.height, perX];
    const middle = (small.low + small.high) / 2;
    [small.low, small.high] = [middle - per * side / 2, middle + per * side / 2];
  }

  function draw(place, {data, layout}) {
    const width = place.clientWidth, height = layout.height, font = layout.font.color;
    const svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({class: "main-svg", width, height, "font-family": FONT})) svg.setAttribute(name, value);
    add(svg, "rect", {width, height, fill: layout.paper_bgcolor});
    const scales = [scaleOf(layout.xaxis, data, "x", layout.shapes), scaleOf(layout.yaxis, data, "y", layout.shapes)];
    const shown = legendRows(legendOf(data, layout), width - 20), low = layout.legend.y < 0;
    const space = layout.showlegend && shown[0].length ? 20 * shown.length + 8 : 0;
    const barred = data.find((trace) => trace.showscale);
    const sideTicks = ticksOf(scales[1]), bottomTicks = ticksOf(scales[0]);
    const widest = Math.max(0, ...sideTicks.map(({text}) => widthOf(text, 12)));
    const left = Math.ceil(widest + 8 + (layout.yaxis.title.text ? 22 : 2));
    const last = bottomTicks.length ? widthOf(bottomTicks.at(-1).text, 12) / 2 : 0;
    const right = barred ? 32 + Math.ceil(widthOf("100 %", 12)) : Math.max(12, Math.ceil(last) + 2);
    const top = Math.max(layout.margin.t - (layout.showlegend && !low ? 20 : 0), 8) + (low ? 0 : space);
    const tall = layout.xaxis.tickangle === -90 ? Math.max(0, ...bottomTicks.map(({text}) => widthOf(text, 12))) + 10 : 20;
    const below = height - (low ? space : 0), bottom = tall + (layout.xaxis.title.text ? 22 : 0);
    const plot = {x: left, y: top, width: Math.max(10, width - left - right), height: Math.max(10, below - bottom - top)};
    if (layout.yaxis.scaleanchor) equalised(scales, plot);
    const to = [0, 1].map((i) => (value) => {
      const share = (scales[i].place(value) - scales[i].low) / (scales[i].high - scales[i].low);
      return i ? plot.y + (1 - share) * plot.height : plot.x + share * plot.width;
    });
    const box = {plot, below, to, width}, look = looks(svg);
    framed(svg, layout, scales, [ticksOf(scales[0]), ticksOf(scales[1])], box, font);
    const barTraces = data.filter((trace) => trace.type === "bar");
    for (const trace of data) {
      const group = add(svg, "g", {class: "trace"});
      if (trace.type === "bar") bars(group, trace, ...to, barTraces.indexOf(trace), barTraces.length, layout.bargap || 0.2, font, look);
      else if (trace.type === "heatmap") heat(group, trace, ...to, look);
      else scatter(group, trace, ...to);
    }
    marked(svg, layout, scales, box);
    if (barred) colourBar(svg, barred, plot.x + plot.width + 10, plot.y, plot.height, font);
    drawLegend(svg, shown, Math.min(left, 20), low ? below + 4 : 2, font, look);
    place.replaceChildren(svg);
  }

  return {draw, blended};
})();
