// Builds the page into ../built: app.js, app.css, index.html and the licences of what is in them.
import { build } from "esbuild";
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";

const out = "../built.new";
rmSync(out, { recursive: true, force: true });
mkdirSync(out);
const made = await build({
  entryPoints: ["app.js", "app.css"],
  format: "esm",
  bundle: true,
  minify: true,
  metafile: true,
  target: ["es2022"],
  legalComments: "none",
  outdir: out,
});
cpSync("index.html", `${out}/index.html`);
const used = new Set(
  Object.keys(made.metafile.inputs)
    .map((path) => path.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1])
    .filter(Boolean),
);
const texts = [...used].sort().map((name) => {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const files = ["LICENSE.md", "LICENSE", "LICENSE.txt", "license"];
  const text = files.map((file) => read(`${folder}/${file}`)).find(Boolean);
  return `${name} ${version} (${license})\n\n${text ?? ""}`;
});
writeFileSync(`${out}/LICENSES.txt`, texts.join("\n\n----\n\n"));
rmSync("../built", { recursive: true, force: true });
cpSync(out, "../built", { recursive: true });
rmSync(out, { recursive: true });

function read(path) {
  try {
    return readFileSync(path, "utf8").trim();
  } catch {
    return "";
  }
}
