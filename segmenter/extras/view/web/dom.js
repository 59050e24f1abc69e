// Elements from plain values; every text becomes text, never HTML.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

export const rgb = (colour) => `rgb(${colour.join(",")})`;

export const swatch = (colour) => el("span", { className: "swatch", style: `background:${rgb(colour)}` });

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 2 }) : String(+value.toPrecision(digits));
}
