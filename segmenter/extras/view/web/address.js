// The address holds place and layers, so that it can be sent, and survives a new start of the program.

export function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const [column, row, resolution] = (words.get("at") ?? "").split(",").map(Number);
  return {
    map: words.get("map"),
    at: resolution > 0 && Number.isFinite(column + row) ? { column, row, resolution } : null,
    layers: (words.get("layers") ?? "").split(",").filter(Boolean).map(oneLayer),
    hidden: (words.get("hidden") ?? "").split(",").filter(Boolean).map(Number),
    list: words.get("list"),
  };
}

function oneLayer(text) {
  const [id, opacity, bands] = text.split(":");
  const number = Number(opacity);
  return {
    id,
    opacity: number >= 0 && number <= 1 ? number : 1,
    bands: (bands ?? "").split("-").filter(Boolean).map(Number),
  };
}

export function writeAddress({ map, at, layers, hidden, list }) {
  const words = new URLSearchParams();
  words.set("map", map);
  if (at) words.set("at", [at.column.toFixed(1), at.row.toFixed(1), +at.resolution.toPrecision(6)].join(","));
  words.set("layers", layers.map(({ id, opacity, bands }) => [id, opacity, ...(bands.length ? [bands.join("-")] : [])].join(":")).join(","));
  if (hidden.length) words.set("hidden", hidden.join(","));
  if (list) words.set("list", list);
  history.replaceState(null, "", `#${words.toString().replaceAll("%2C", ",").replaceAll("%3A", ":")}`);
}
