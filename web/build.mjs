/** Builds the page into dist/page. The app's assets must be there (scripts/build_web). */

import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { cp, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { compress, init } from "@bokuweb/zstd-wasm";
import { build } from "esbuild";

const ASSETS = process.env.ASSETS ?? "../android_app/app/target";
const WASM = "node_modules/@litertjs/core/wasm";
const PAGE = "dist/page";
const PACKS = "target/packed";
const PROGRAM = "digits.tflite";
const BUILDS = ["litert_wasm_internal", "litert_wasm_compat_internal"];

/** What page/unpack.ts must know of the files that it unpacks. */
const packed = {};

const digestOf = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** Packs a file for the page. What was packed is kept: it takes the better part of a minute. */
async function pack(from, file) {
  const bytes = await readFile(from);
  const kept = `${PACKS}/${digestOf(bytes)}.zst`;
  if (!existsSync(kept)) {
    await writeFile(kept, compress(bytes, 22));
  }
  const made = await readFile(kept);
  // Not by the usual ending, which some servers take for a promise to unpack it.
  await writeFile(`${PAGE}/${file}.bin`, made);
  packed[file] = { bytes: made.length, sha256: digestOf(made) };
}

const common = { bundle: true, minify: true, target: "es2022", logLevel: "warning", legalComments: "none" };

await init();
await mkdir(PACKS, { recursive: true });
await rm(PAGE, { recursive: true, force: true });
await mkdir(`${PAGE}/litert`, { recursive: true });
await build({
  ...common,
  entryPoints: ["page/main.tsx"],
  format: "esm",
  outdir: PAGE,
  define: { DESCRIPTION: JSON.stringify(await readFile(`${ASSETS}/assets/digits.json`, "utf8")) },
  jsx: "automatic",
  jsxImportSource: "preact",
});
for (const name of ["index.html", "style.css", "icon.svg", "page.webmanifest"])
  await cp(`page/${name}`, `${PAGE}/${name}`);
await cp(`${ASSETS}/assets/digits.samples`, `${PAGE}/digits.samples`);
await cp(`${ASSETS}/web/hand.json`, `${PAGE}/hand.json`);
await pack(`${ASSETS}/assets/${PROGRAM}`, PROGRAM);
for (const name of BUILDS) {
  await build({ ...common, bundle: false, entryPoints: [`${WASM}/${name}.js`], outdir: `${PAGE}/litert` });
  await pack(`${WASM}/${name}.wasm`, `litert/${name}.wasm`);
}
// A classic worker: LiteRT.js loads its script by importScripts.
await build({
  ...common,
  entryPoints: ["page/worker.ts"],
  format: "iife",
  outdir: PAGE,
  define: {
    "import.meta.url": "self.location.href",
    PACKED: JSON.stringify(packed),
  },
});

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
