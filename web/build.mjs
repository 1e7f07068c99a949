/** Builds the page into dist/page and the library into dist/trainer.js. The app's assets must be there (scripts/build_web). */
import { createHash } from "node:crypto";
import { cp, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { promisify } from "node:util";
import { gzip } from "node:zlib";
import { build } from "esbuild";

const ASSETS = process.env.ASSETS ?? "../android_app/app/target";
const WASM = "node_modules/@litertjs/core/wasm";
const PAGE = "dist/page";
const BUILDS = ["litert_wasm_internal", "litert_wasm_compat_internal"];

const common = { bundle: true, minify: true, target: "es2022", logLevel: "warning", legalComments: "none" };

await rm("dist", { recursive: true, force: true });
await mkdir(`${PAGE}/litert`, { recursive: true });
await build({
  ...common,
  minify: false,
  entryPoints: ["trainer.ts"],
  format: "esm",
  outfile: "dist/trainer.js",
  external: ["@litertjs/core"],
});
await build({
  ...common,
  entryPoints: ["page/main.tsx"],
  format: "esm",
  outdir: PAGE,
  jsx: "automatic",
  jsxImportSource: "preact",
});
// A classic worker: LiteRT.js loads its script by importScripts.
await build({ ...common, entryPoints: ["page/worker.ts"], format: "iife", outdir: PAGE });
for (const name of ["index.html", "style.css", "icon.svg", "page.webmanifest"])
  await cp(`page/${name}`, `${PAGE}/${name}`);
for (const name of ["digits.json", "digits.tflite", "digits.samples"])
  await cp(`${ASSETS}/assets/${name}`, `${PAGE}/${name}`);
await cp(`${ASSETS}/web/hand.json`, `${PAGE}/hand.json`);
for (const name of BUILDS) {
  await cp(`${WASM}/${name}.js`, `${PAGE}/litert/${name}.js`);
  const packed = await promisify(gzip)(await readFile(`${WASM}/${name}.wasm`), { level: 9 });
  await writeFile(`${PAGE}/litert/${name}.wasm.bin`, packed);
}

const files = (await readdir(PAGE, { recursive: true, withFileTypes: true }))
  .filter((entry) => entry.isFile())
  .map((entry) => `${entry.parentPath}/${entry.name}`.slice(PAGE.length + 1))
  .sort();
const digest = createHash("sha256");
for (const file of files) digest.update(file).update(await readFile(`${PAGE}/${file}`));
await build({
  ...common,
  entryPoints: ["page/service-worker.ts"],
  format: "iife",
  outdir: PAGE,
  define: {
    FILES: JSON.stringify(["./", ...files.filter((file) => file !== "index.html")]),
    VERSION: JSON.stringify(digest.digest("hex").slice(0, 16)),
  },
});
