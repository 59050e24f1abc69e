// One question after the other: a place, large and with its surroundings, and an answer by a key.
const KEYS = [..."123456789abcdefghijklmnopqrstuvwxyz"];
const CLOSE = 129, AROUND = 2; // pixels of a picture's side, and steps in the list of sides to its surroundings

const page = sessionStorage.page ??= crypto.getRandomValues(new Uint32Array(2)).join("-");
const element = (id) => document.getElementById(id);
let state, row = null, zoom = 0, saving = false; // zoom: steps from the usual side

function made(tag, text = "", attributes = {}) {
  const one = document.createElement(tag);
  one.textContent = text;
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  return one;
}

function say(text, fault = false) {
  element("status").textContent = text;
  element("status").classList.toggle("fault", fault);
}

// Return what the server says, with its status: 409 tells that nothing was written.
async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify({ page, ...body }) };
  let reply;
  try {
    reply = await fetch(path, options);
  } catch {
    const lost = body === undefined ? "" : ", nothing was saved";
    throw new Error(`The server does not answer${lost}. Start \`segmenter view\` again.`);
  }
  const found = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(found.error), found);
  return found;
}

// ------------------------------------------------------------------------------------------- what is shown

function cross(side) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "cross");
  svg.setAttribute("viewBox", `0 0 ${side} ${side}`);
  const a = (side - 1) / 2, b = a + 1, m = side / 2, gap = Math.max(1, side / 24), arm = side / 6;
  const square = `M${a} ${a}H${b}V${b}H${a}Z`;
  const arms = [[1, 0], [-1, 0], [0, 1], [0, -1]].map(([x, y]) =>
    `M${m + x * gap} ${m + y * gap}L${m + x * (gap + arm)} ${m + y * (gap + arm)}`).join("");
  for (let i = 0; i < 2; i++) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", square + arms);
    svg.append(path);
  }
  return svg;
}

function picture(of, layer, side, name, kind) {
  const figure = made("figure", "", { class: kind });
  const frame = made("div");
  const image = made("img", "", { alt: `${name} of ${of.number}`, src: `place/${of.fid}/${layer}/${side}` });
  image.addEventListener("error", () => say(`The picture ${name} cannot be read.`, true));
  frame.append(image);
  if (state.kind === "points" && layer !== "picture") frame.append(cross(side));
  figure.append(frame, made("figcaption", layer === "picture" ? name : `${name}, ${side} × ${side} pixels`));
  return figure;
}

function pictures(of) {
  const { sides } = state, usual = sides.findIndex((side) => side >= Math.max(CLOSE, 1.6 * (of.side ?? 0)));
  const last = sides.length - 1, first = usual < 0 ? last : usual;
  zoom = Math.max(-first, Math.min(last - first, zoom));
  const at = (step) => sides[Math.min(last, first + zoom + step)];
  if (of.layers.includes("picture")) return [picture(of, "picture", at(0), "picture", "large")];
  if (state.kind === "findings") {
    return of.layers.map((layer, i) => picture(of, layer, at(0), layer, i ? "small" : "large"));
  }
  const close = of.layers.map((layer) => picture(of, layer, at(0), layer, "large"));
  return [...close, ...of.layers.map((layer) => picture(of, layer, at(AROUND), "surroundings", "small"))];
}

function show(next) {
  row = next;
  const { kind } = state;
  element("places").className = kind === "findings" ? "pair" : "";
  if (row === null) {
    element("places").replaceChildren();
    element("question").textContent = "All are answered";
    const text = made("span", "Next: ");
    text.append(made("code", state.done));
    element("detail").replaceChildren(text);
    zoom = 0;
  } else {
    element("places").replaceChildren(...pictures(row));
    element("question").textContent = row.title || `Which class is at the cross? Point ${row.number}`;
    element("detail").textContent = row.fault ? `${row.detail}. ${row.fault}` : row.detail;
  }
  element("answers").hidden = row === null;
  for (const button of element("answers").children) {
    button.setAttribute("aria-pressed", String(row !== null && row.answer !== "" && button.dataset.answer === row.answer));
    const note = button.querySelector("small");
    if (note) note.textContent = row === null ? "" : note.dataset[button.dataset.answer === row.likely ? "likely"
      : button.dataset.answer === row.label ? "label" : "other"];
  }
  progress(state.progress);
  history.replaceState(null, "", row === null ? "#" : `#${row.fid}`);
}

function progress(now) {
  state.progress = now;
  const unclear = now.unclear ? `, ${now.unclear} cannot be told` : "";
  element("count").textContent = `${now.answered} of ${now.total} answered${unclear}`;
  element("progress").max = now.total;
  element("progress").value = now.answered;
  element("estimate").hidden = state.kind !== "points";
  const list = now.intervals.slice(-8).map(([points, low, high]) => {
    const line = made("li"), svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    svg.setAttribute("viewBox", "0 0 100 1");
    svg.setAttribute("preserveAspectRatio", "none");
    for (const [name, value] of Object.entries({ x: 100 * low, width: 100 * (high - low), y: 0, height: 1 })) {
      bar.setAttribute(name, value);
    }
    svg.append(bar);
    line.append(made("span", `${points} points`), svg, made("span", `${(100 * low).toFixed(1)}–${(100 * high).toFixed(1)} %`));
    return line;
  });
  const wait = made("li", "It comes after ten answers, once each part of the sample has two.", { style: "display: block" });
  element("intervals").replaceChildren(...(list.length ? list : [wait]));
}

function buttons() {
  const { classes, kind, unclear } = state;
  const all = [...classes.map((one, i) => [one.name, KEYS[i] ?? "", one.colour]), [unclear, "0", ""]];
  element("answers").replaceChildren(...all.map(([name, key, colour]) => {
    const button = made("button", "", { type: "button" });
    button.dataset.answer = name;
    if (key) button.append(made("kbd", key));
    if (colour) button.append(made("span", "", { class: "swatch", style: `background:${colour}` }));
    button.append(made("span", name));
    if (kind === "findings") {
      const note = made("small");
      Object.assign(note.dataset, { likely: "accepts (Enter)", label: "dismisses (Delete)", other: "" });
      button.append(note);
    }
    button.addEventListener("click", () => answer(name));
    return button;
  }));
  element("keys").textContent = (kind === "findings" ? "Enter accepts, Delete dismisses. " : "")
    + "Backspace goes back, Space goes on without an answer, + and − zoom.";
}

// --------------------------------------------------------------------------------------------- what is done

async function answer(text) {
  if (row === null || saving) return;
  saving = true;
  const { fid, stamp } = row;
  say("Saving …");
  try {
    const saved = await ask("answer", { fid, stamp, answer: text });
    state.progress = saved.progress;
    const next = await ask(`next/${fid}`);
    show(next);
    say(`Saved: ${text}`);
  } catch (error) {
    await refused(error, fid);
  } finally {
    saving = false;
  }
}

async function refused(error, fid) {
  if (error.changed) show(await ask(`row/${fid}`).catch(() => ask(`next/${fid}`)));
  say(error.message, true);
  if (error.changed !== false) return;
  const take = made("button", "Write here instead", { type: "button" });
  take.addEventListener("click", async () => {
    progress(await ask("claim", {}));
    say("This page writes now. Answer again.");
  });
  element("status").append(" ", take);
}

async function go(word) {
  if (saving) return;
  try {
    const near = await ask(`${word}/${row?.fid ?? 0}`);
    if (near !== null) show(near);
    say(near === null ? "There is no other." : "");
  } catch (error) {
    say(error.message, true);
  }
}

function zoomed(step) {
  zoom += step;
  if (row !== null) element("places").replaceChildren(...pictures(row));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || !state) return;
  const { key } = event, onButton = event.target.tagName === "BUTTON";
  const place = KEYS.indexOf(key.toLowerCase());
  const findings = state.kind === "findings" && row !== null;
  const done = key === "0" ? () => answer(state.unclear)
    : place >= 0 && place < state.classes.length ? () => answer(state.classes[place].name)
    : key === "Backspace" ? () => go("before")
    : key === " " && !onButton ? () => go("after")
    : key === "Enter" && findings && !onButton ? () => answer(row.likely)
    : key === "Delete" && findings ? () => answer(row.label)
    : key === "+" || key === "=" ? () => zoomed(-1)
    : key === "-" ? () => zoomed(1) : null;
  if (done === null) return;
  event.preventDefault();
  done();
});
addEventListener("pagehide", () => navigator.sendBeacon("leave", JSON.stringify({ page })));
setInterval(async () => {
  if (!state) return;
  try {
    progress((await ask(`state?page=${page}`)).progress);
  } catch (error) {
    say(error.message, true);
  }
}, 30000);

try {
  state = await ask(`state?page=${page}`);
  document.title = `${state.title}: answers`;
  element("title").textContent = state.title;
  buttons();
  const fid = Number(location.hash.slice(1));
  let first = null;
  if (Number.isInteger(fid) && fid > 0) first = await ask(`row/${fid}`).catch(() => null);
  show(first ?? await ask("next/0"));
  say(state.progress.writes ? "" : "Another page writes the answers; this one shows them.", true);
} catch (error) {
  say(error.message, true);
}
