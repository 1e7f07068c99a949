import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { allBlocks, type Block, blocksOf } from "./blocks.ts";

const FOLDER = "target/docs-types";
const OPTIONS = {
  allowJs: true,
  exactOptionalPropertyTypes: true,
  lib: ["es2023", "dom", "dom.iterable", "dom.asynciterable"],
  module: "esnext",
  moduleResolution: "bundler",
  noEmit: true,
  strict: true,
  target: "es2022",
  types: [],
};

/** What tsc says of some blocks, as a reader has them: beside the package, and with it installed. */
function compiled(blocks: readonly Block[], options: object = OPTIONS): string {
  rmSync(FOLDER, { recursive: true, force: true });
  mkdirSync(`${FOLDER}/node_modules`, { recursive: true });
  cpSync("dist/package", `${FOLDER}/pocketune`, { recursive: true, filter: (name) => !name.includes("litert/") });
  symlinkSync("../pocketune", `${FOLDER}/node_modules/pocketune`);
  const names = blocks.map((block, i) => {
    const script =
      block.language === "html" ? (/<script[^>]*>(.*)<\/script>/s.exec(block.text)?.[1] ?? "") : block.text;
    const name = `block${i}-line${block.line}.${block.language === "ts" ? "ts" : "js"}`;
    writeFileSync(`${FOLDER}/${name}`, `${script}\nexport {};\n`);
    return name;
  });
  writeFileSync(`${FOLDER}/tsconfig.json`, JSON.stringify({ compilerOptions: options, files: names }));
  return spawnSync("node_modules/.bin/tsc", ["-p", FOLDER], { encoding: "utf8" }).stdout;
}

test("every block is a file of its own, or says why it is left out", () => {
  const parts = allBlocks().filter((block) => !block.file && !block.skipped);
  assert.deepEqual(
    parts.map(({ page, line }) => `${page}:${line}`),
    [],
  );
});

test("every block compiles against the package", () => {
  const blocks = allBlocks().filter((block) => !block.skipped);
  assert.ok(blocks.some(({ language }) => language === "html") && blocks.some(({ language }) => language === "ts"));
  assert.equal(compiled(blocks), "");
});

test("the package's types hold for every way to find modules", () => {
  const blocks = allBlocks().filter((block) => block.language === "ts" && !block.skipped);
  assert.equal(compiled(blocks, { ...OPTIONS, module: "nodenext", moduleResolution: "nodenext" }), "");
});

test("a planted block that is wrong is found", () => {
  const import_ = 'import { Program } from "pocketune";\n';
  const page = `\`\`\`ts\n// planted.ts\n${import_}const n: number = await Program.open(new ArrayBuffer(8));\n\`\`\`\n`;
  assert.match(compiled(blocksOf("planted", page)), /not assignable to type 'number'/);
  assert.match(compiled(blocksOf("planted", "```html\n<script>\nlet 1 = 2;\n</script>\n```\n")), /error TS/);
});
