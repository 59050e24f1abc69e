// What the page asks the program for; a page that was exported has it all within itself.

export const offline = globalThis.OFFLINE ?? null;

const listeners = [];
export const onFault = (listener) => listeners.push(listener);
const tell = (text) => listeners.forEach((listener) => listener(text));

export const GONE = "The program has ended: start segmenter view again, and open the address that it prints.";

export async function ask(path) {
  if (offline) return offline.answers[path] ?? null;
  let answer;
  try {
    answer = await fetch(path);
  } catch {
    tell(GONE);
    return null;
  }
  const value = await answer.json();
  if (answer.ok) return value;
  tell(value.error);
  return null;
}

/** The picture of a tile, or null where it cannot be read. */
export async function tile(path, query, signal) {
  if (offline && !(path in offline.tiles)) return null;
  let answer;
  try {
    answer = await fetch(offline ? offline.tiles[path] : `${path}?${query}`, { signal });
  } catch (error) {
    if (error.name !== "AbortError") tell(GONE);
    return null;
  }
  if (answer.ok) {
    const exact = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
    return createImageBitmap(await answer.blob(), exact);
  }
  tell((await answer.json()).error);
  return null;
}
