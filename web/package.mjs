/**
 * Builds the library into dist/package, an npm package that a page can also use as it lies there: trainer.js is one
 * module with LiteRT.js in it, litert/ holds the WebAssembly that it loads, federated.js takes part in federated training by
 * the trainer.js beside it.
 */

import { execFileSync } from "node:child_process";
import { cp, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { build } from "esbuild";

const OUT = "dist/package";
const WASM = "node_modules/@litertjs/core/wasm";
/** With relaxed SIMD, and for browsers without it. */
const BUILDS = ["litert_wasm_internal", "litert_wasm_compat_internal"];

const own = JSON.parse(await readFile("package.json", "utf8"));

await rm(OUT, { recursive: true, force: true });
await mkdir(`${OUT}/litert`, { recursive: true });
const common = { bundle: true, format: "esm", legalComments: "inline", logLevel: "warning", target: "es2022" };
const beside = {
  name: "beside",
  setup: (own) => own.onResolve({ filter: /\/trainer\.ts$/ }, () => ({ path: "./trainer.js", external: true })),
};
await build({ ...common, entryPoints: ["trainer.ts"], outfile: `${OUT}/trainer.js` });
await build({ ...common, entryPoints: ["federated.ts"], outfile: `${OUT}/federated.js`, plugins: [beside] });
execFileSync("node_modules/.bin/tsc", ["-p", "tsconfig.library.json"], { stdio: "inherit" });
const types = await readdir(OUT, { recursive: true });
for (const file of types.filter((name) => name.endsWith(".d.ts"))) {
  // Sources import each other as .ts, which no compiler looks for in a package.
  const text = await readFile(`${OUT}/${file}`, "utf8");
  await writeFile(`${OUT}/${file}`, text.replaceAll(/(from ".+)\.ts"/g, '$1.js"'));
}
for (const name of BUILDS) {
  for (const type of ["js", "wasm"]) await cp(`${WASM}/${name}.${type}`, `${OUT}/litert/${name}.${type}`);
}
await cp("README.md", `${OUT}/README.md`);
// Its links lead to pages that are not in the package.
const page = await readFile("../docs/web.md", "utf8");
await writeFile(`${OUT}/web.md`, page.replaceAll(/\[([^\]]+)\]\((?!#|https?:)[^)]+\)/g, "$1"));
await cp("../LICENSE", `${OUT}/LICENSE`);
const varint = await readFile("node_modules/@bufbuild/protobuf/dist/esm/wire/varint.js", "utf8");
const terms = varint.slice(0, varint.indexOf("/**")).replaceAll(/^\/\/ ?/gm, "");
await writeFile(
  `${OUT}/NOTICE`,
  `federated.js contains a part of @bufbuild/protobuf: Copyright Buf Technologies, Inc., Apache-2.0, and of its
variable-length integers:

${terms}
It speaks the protocol of Flower (https://flower.ai): Copyright Flower Labs GmbH, Apache-2.0.
`,
);
await writeFile(
  `${OUT}/package.json`,
  `${JSON.stringify(
    {
      name: "pocketune",
      version: own.version,
      description: "Trains programs of Pocketune in the browser, on LiteRT.js",
      license: "Apache-2.0",
      type: "module",
      sideEffects: false,
      types: "./trainer.d.ts",
      exports: {
        ".": { types: "./trainer.d.ts", default: "./trainer.js" },
        "./federated": { types: "./federated.d.ts", default: "./federated.js" },
        "./litert/*": "./litert/*",
        "./package.json": "./package.json",
      },
      files: [
        "trainer.js",
        "trainer.d.ts",
        "trainer",
        "federated.js",
        "federated.d.ts",
        "federated",
        "litert",
        "NOTICE",
        "web.md",
      ],
    },
    null,
    2,
  )}\n`,
);
