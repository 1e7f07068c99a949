import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import type { Browser, BrowserContext, Page } from "puppeteer-core";
import type { Problem } from "../../page/protocol.ts";
import { PROBLEMS } from "../../page/words.ts";
import { launch, press, ready, Site, says, words } from "./browser.ts";
import { openDrawer, record, recorded, smuggle, stored } from "./recorded.ts";

const ASSETS = process.env.ASSETS ?? "../android_app/app/target";
const STANDING = "[aria-labelledby=compare] .quiet";
const NOT_YET = "Personalise first";

let browser: Browser;
let site: Site;
let context: BrowserContext;

before(async () => {
  browser = await launch();
});

after(() => browser.close());

beforeEach(async () => {
  [site, context] = [await Site.open(), await browser.createBrowserContext()];
});

afterEach(async () => {
  await context.close();
  site.close();
});

/** One more tab of the same person. */
async function tab(of: Browser | BrowserContext = context): Promise<Page> {
  const page = await of.newPage();
  await record(page);
  await openDrawer(page);
  await page.goto(site.url);
  return page;
}

async function learned(page: Page): Promise<void> {
  await press(page, "Add somebody");
  await press(page, "Personalise");
  await says(page, "[role=status]", "Done");
}

async function tells(page: Page, problem: Problem): Promise<void> {
  await says(page, "[role=alert]", PROBLEMS[problem]);
}

/** Until so many steps are done. */
async function steps(page: Page, count: number): Promise<void> {
  await page.waitForFunction(
    (count) => Number(document.querySelector("progress")?.value) >= count,
    { polling: 10 },
    count,
  );
}

test("a tab that is killed in mid-training leaves the old state, and the next one goes on to the same end", async () => {
  const undisturbed = await tab();
  await ready(undisturbed);
  await learned(undisturbed);
  const expected = (await recorded(undisturbed)).flatMap((event) => (event.kind === "step" ? [event.loss] : []));
  await context.close();
  context = await browser.createBrowserContext();

  const page = await tab();
  await ready(page);
  await press(page, "Add somebody");
  await press(page, "Personalise");
  await steps(page, 40);
  await page.goto("chrome://crash").catch(() => undefined);
  await page.close();
  const next = await tab();
  await ready(next);
  assert.match(await words(next, STANDING), new RegExp(NOT_YET));
  assert.equal(await stored(next, "personal.state"), null);
  await press(next, "Personalise");
  await says(next, "[role=status]", "Done");
  const events = await recorded(next);
  const started = events[0];
  assert.ok(started?.kind === "started" && started.resumedAt >= 30, "it did not go on");
  const losses = events.flatMap((event) => (event.kind === "step" ? [event.loss] : []));
  assert.deepEqual(losses, expected.slice(started.resumedAt));
});

test("cancelled, a training leaves the old state; paused, it waits", async () => {
  const page = await tab();
  await ready(page);
  await press(page, "Add somebody");
  await press(page, "Personalise");
  await steps(page, 5);
  await press(page, "Pause");
  await says(page, "[aria-labelledby=personalise]", "Paused.");
  await press(page, "Resume");
  await press(page, "Cancel");
  await says(page, "[role=status]", "Cancelled");
  assert.match(await words(page, STANDING), new RegExp(NOT_YET));
  assert.deepEqual([await stored(page, "personal.state"), await stored(page, "personal.state.training")], [null, null]);
});

test("where the storage is full, the model from before stays", async () => {
  const folder = mkdtempSync(join(tmpdir(), "pocketune-"));
  try {
    // A browser remembers for a while how much room there was: another process of it has to look.
    const first = await launch(folder);
    const taught = await tab(first);
    await ready(taught);
    await learned(taught);
    const kept = await stored(taught, "personal.state");
    await first.close();
    const second = await launch(folder);
    const page = await second.newPage();
    await openDrawer(page);
    const session = await page.createCDPSession();
    await session.send("Storage.overrideQuotaForOrigin", { origin: site.url, quotaSize: 1000 });
    await page.goto(site.url);
    await ready(page);
    await press(page, "Personalise");
    await tells(page, "storage");
    assert.match(await words(page, STANDING), /in use, and kept/);
    assert.deepEqual(await stored(page, "personal.state"), kept);
    await page.reload();
    await ready(page);
    assert.match(await words(page, STANDING), /in use, and kept/);
    await second.close();
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("a corrupted state is told of, and the one before, or the original, takes its place", async () => {
  const page = await tab();
  await ready(page);
  await learned(page);
  await press(page, "Personalise");
  await says(page, "[role=status]", "Done");
  const file = (await stored(page, "personal.state")) ?? Buffer.alloc(0);
  file[file.length - 5] = 0x55 ^ (file[file.length - 5] ?? 0);
  await smuggle(page, "personal.state", file);
  await page.reload();
  await tells(page, "state-older");
  assert.match(await words(page, STANDING), /personalised earlier/);
  await smuggle(page, "personal.state.previous", file);
  await page.reload();
  await tells(page, "state-damaged");
  assert.match(await words(page, STANDING), new RegExp(NOT_YET));
  assert.ok(await stored(page, "personal.state.unusable"));
  await press(page, "Personalise");
  await says(page, "[role=status]", "Done");
  await smuggle(page, "personal.state", readFileSync(`${ASSETS}/fixtures/foreign.state`));
  await page.reload();
  await tells(page, "state-foreign");
  await smuggle(page, "notes.json", Buffer.from("{}"), "notes");
  await page.reload();
  await tells(page, "notes-damaged");
  await page.reload();
  await ready(page);
  assert.equal(await page.$("[role=alert]"), null);
});

test("files that are no state of this model change nothing", async () => {
  const page = await tab();
  await ready(page);
  for (const [file, problem] of [
    [`${ASSETS}/fixtures/foreign.state`, "file-foreign"],
    [`${ASSETS}/assets/digits.tflite`, "file-damaged"],
  ] as const) {
    const [chooser] = await Promise.all([page.waitForFileChooser(), press(page, "Take from a file")]);
    await chooser.accept([file]);
    await tells(page, problem);
  }
  assert.match(await words(page, STANDING), new RegExp(NOT_YET));
});

test("after the first visit it works without a connection", async () => {
  const page = await tab();
  await ready(page);
  await page.evaluate(async () => {
    await navigator.serviceWorker.ready;
  });
  site.close();
  await page.reload();
  await ready(page);
  await learned(page);
  assert.match(await words(page, STANDING), /in use, and kept/);
});

test("what cannot be loaded, or is damaged, is told in a sentence, and nothing runs it", async () => {
  const altered = (file: Buffer) => file.map((byte, at) => (at === 1000 ? byte ^ 1 : byte));
  const damages: [string, (file: Buffer) => Uint8Array][] = [
    ["/digits.tflite.bin", altered],
    ["/litert/litert_wasm_internal.wasm.bin", (file) => file.subarray(0, -1)],
    ["/digits.samples", altered],
  ];
  for (const [path, damage] of damages) {
    site.replaced.set(path, Buffer.from(damage(readFileSync(`dist/page${path}`))));
    await tells(await tab(), "program-damaged");
    site.replaced.clear();
    await context.close();
    context = await browser.createBrowserContext();
  }
  for (const missing of [/\.wasm\.bin$/, /tflite\.bin$/, /worker\.js$/]) {
    site.missing = missing;
    await isTaughtAfter("offline");
  }
  site.missing = /^$/;
  site.replaced.set("/worker.js", readFileSync("dist/page/worker.js").subarray(0, -100));
  await isTaughtAfter("runtime");
});

/** A page without a model, for this reason, keeps drawings. */
async function isTaughtAfter(problem: Problem): Promise<void> {
  await context.close();
  context = await browser.createBrowserContext();
  const page = await tab();
  await tells(page, problem);
  assert.match(await words(page, "[aria-labelledby=personalise] button:disabled"), /could not be loaded/);
  await press(page, "Add somebody");
  await says(page, "[role=status]", "40 drawings added");
}

test("a second tab says so, and goes on when the first one is closed", async () => {
  const first = await tab();
  await ready(first);
  await learned(first);
  const second = await tab();
  await tells(second, "elsewhere");
  await first.close();
  await ready(second);
  await setTimeout(0);
  assert.equal(await second.$("[role=alert]"), null);
  assert.match(await words(second, STANDING), /in use, and kept/);
});
