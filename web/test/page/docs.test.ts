import assert from "node:assert/strict";
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import type { Browser } from "puppeteer-core";
import { allBlocks, type Block } from "../blocks.ts";
import { launch, Site } from "./browser.ts";

/** A folder as the documentation has its reader make one: the package, a program, and the pages' files. */
const FOLDER = "target/docs-site";
const PROGRAMS = process.env.PROGRAMS ?? "../android_app/target/programs";

let browser: Browser;
let site: Site;

before(async () => {
  rmSync(FOLDER, { recursive: true, force: true });
  mkdirSync(FOLDER, { recursive: true });
  cpSync("dist/package", `${FOLDER}/pocketune`, { recursive: true });
  // Where the server of a user with a bundler has them.
  cpSync("dist/package/litert", `${FOLDER}/litert`, { recursive: true });
  cpSync(`${PROGRAMS}/docs-web.tflite`, `${FOLDER}/model.tflite`);
  cpSync(`${PROGRAMS}/docs-language.tflite`, `${FOLDER}/language.tflite`);
  [browser, site] = [await launch(), await Site.open(FOLDER)];
  site.replaced.set("/favicon.ico", Buffer.alloc(0));
});

after(async () => {
  await browser.close();
  site.close();
});

/** Writes a block as the file that it is; gives the page that runs it, null for what another page loads. */
async function written({ language, text, file }: Block): Promise<string | null> {
  assert.ok(file);
  writeFileSync(`${FOLDER}/${file}`, text);
  if (language === "html") return file;
  if (language === "js" && !text.includes('"pocketune"')) return null;
  const outfile = `${FOLDER}/bundle.js`;
  const alias = { pocketune: "./dist/package/trainer.js" };
  await build({ alias, bundle: true, entryPoints: [`${FOLDER}/${file}`], format: "esm", outfile, logLevel: "silent" });
  writeFileSync(`${FOLDER}/bundle.html`, '<!doctype html><body><script type="module" src="bundle.js"></script>');
  return "bundle.html";
}

test("every page and script of the documentation runs", async (context) => {
  for (const block of allBlocks()) {
    if (block.skipped) continue;
    const page = await written(block);
    if (!page) continue;
    await context.test(`${block.page}:${block.line}`, async () => {
      const tab = await (await browser.createBrowserContext()).newPage();
      await tab.setCacheEnabled(false);
      const faults: string[] = [];
      const told: string[] = [];
      tab.on("pageerror", (error) => faults.push(String(error)));
      tab.on("console", (message) => (message.type() === "error" ? faults : told).push(message.text()));
      await tab.goto(site.url + page);
      const words = block.says ?? "";
      const said = () => tab.evaluate(() => document.getElementById("said")?.textContent ?? "");
      const isThere = async () => told.join("\n").includes(words) || (await said()).includes(words);
      const end = Date.now() + 60_000;
      while (!faults.length && !(words && (await isThere()))) {
        if (Date.now() > end) faults.push(`it never said "${words}", but: ${told.join("\n")}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      assert.deepEqual(faults, []);
      await tab.close();
    });
  }
});

test("a worker of either type trains by the same file", async () => {
  const script = `
    const samples = [0, 1, 2].map((kind) => labelled(new Float32Array(8).fill(kind), kind));
    const program = await Program.open(await (await fetch("model.tflite")).arrayBuffer());
    const trainer = await Trainer.open(program, liteRt({ folder: new URL("litert/", location.href).href }), new MemoryStore());
    for await (const event of trainer.fit(samples, { epochs: 2 })) if (event.kind === "finished") postMessage(event);`;
  const names = "labelled, liteRt, MemoryStore, Program, Trainer";
  writeFileSync(`${FOLDER}/module.js`, `import { ${names} } from "./pocketune/trainer.js";\n${script}`);
  writeFileSync(`${FOLDER}/classic.js`, `import("./pocketune/trainer.js").then(async ({ ${names} }) => {${script}});`);
  writeFileSync(`${FOLDER}/workers.html`, "<!doctype html><body>");
  const tab = await browser.newPage();
  await tab.goto(`${site.url}workers.html`);
  for (const type of ["module", "classic"] as const) {
    const said = await tab.evaluate(
      (type) =>
        new Promise((resolve, reject) => {
          const worker = new Worker(`${type}.js`, { type });
          worker.onmessage = ({ data }) => resolve(data.kind);
          worker.onerror = (event) => reject(new Error(event.message));
        }),
      type,
    );
    assert.equal(said, "finished", type);
  }
  await tab.close();
});

test("the package says what it is", () => {
  const { version } = JSON.parse(readFileSync("package.json", "utf8"));
  const packed = JSON.parse(readFileSync("dist/package/package.json", "utf8"));
  assert.equal(packed.version, version);
  for (const file of [packed.types, packed.exports["."].default, "LICENSE", "README.md", "web.md"]) {
    assert.ok(readFileSync(`dist/package/${file}`).length > 0);
  }
});
