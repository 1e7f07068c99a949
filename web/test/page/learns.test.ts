import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import type { Browser, ElementHandle, Page } from "puppeteer-core";
import { builtInSamples } from "../../page/built-in.ts";
import { readDescription } from "../../page/description.ts";
import type { Notes } from "../../page/notes.ts";
import { imageOf } from "../../page/preprocessing.ts";
import { Curriculum } from "../../trainer/session/batches.ts";
import { whole } from "../../trainer/session/plan.ts";
import { labelled, type TrainEvent } from "../../trainer.ts";
import { draw, launch, press, ready, Site, says, words } from "./browser.ts";
import { openDrawer, record, recorded, stored } from "./recorded.ts";

const ASSETS = process.env.ASSETS ?? "../android_app/app/target";
const OUT = `${process.cwd()}/target/page`;
const DRAWINGS = 40;
const SIDE = 600;

interface Fixture {
  label: number;
  strokes: [number, number, number][][];
  image: number[];
}
const { person, odd } = JSON.parse(readFileSync(`${ASSETS}/fixtures/strokes.json`, "utf8")) as {
  person: Fixture[];
  odd: Fixture[];
};
const description = readDescription(new Uint8Array(readFileSync(`${ASSETS}/assets/digits.json`)));

let browser: Browser;
let site: Site;
let page: Page;
const elsewhere: string[] = [];

before(async () => {
  rmSync(OUT, { recursive: true, force: true });
  mkdirSync(OUT, { recursive: true });
  [browser, site] = [await launch(), await Site.open()];
  page = await browser.newPage();
  page.on("request", (request) => {
    if (!request.url().startsWith(site.url) && !request.url().startsWith("blob:")) elsewhere.push(request.url());
  });
  const session = await page.createCDPSession();
  await session.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: OUT });
  await record(page);
  await openDrawer(page);
  await page.goto(site.url);
  await ready(page);
});

after(async () => {
  await browser.close();
  site.close();
});

test("strokes become the images of the phone and the host, to the last bit", () => {
  for (const { strokes, image } of [...odd, ...person]) {
    assert.deepEqual(imageOf(strokes, description.preprocessing), Float32Array.from(image));
  }
});

test("forty drawings by mouse are learned as Python learns them, and the state goes both ways", async () => {
  for (const { label, strokes } of person.slice(0, DRAWINGS)) {
    await press(page, `${label}`);
    await draw(page, strokes, SIDE);
    await press(page, "Add as");
  }
  await press(page, "Personalise");
  await says(page, "[role=status]", "Done");

  const noted = JSON.parse((await stored(page, "notes.json", "notes"))?.toString() ?? "") as Notes;
  assert.equal(noted.drawings.length, DRAWINGS);
  const { held, steps } = lessonsOf(noted);
  writeFileSync(`${OUT}/batches.json`, JSON.stringify({ held, steps }));
  await press(page, "Save to a file");
  const exported = `${OUT}/digits.state`;
  const file = await downloaded(exported);
  assert.equal(Buffer.compare(file, (await stored(page, "personal.state")) ?? Buffer.alloc(0)), 0);

  const python = process.env.PYTHON ?? assert.fail("PYTHON is not set");
  const host = `${OUT}/host.state`;
  const files = [`${ASSETS}/assets/digits.tflite`, `${OUT}/batches.json`, exported, host];
  const said = JSON.parse(execFileSync(python, ["test/page/replay.py", ...files], { encoding: "utf8" }));
  const events = await recorded(page);
  const losses = events.flatMap((event) => (event.kind === "step" ? [event.loss] : []));
  assert.equal(losses.length, steps.length);
  const worst = Math.max(...losses.map((loss, i) => Math.abs(loss - said.losses[i]) / Math.max(1, said.losses[i])));
  assert.ok(worst < 1e-5, `losses differ by ${worst}`);
  const end = events.at(-1) as Extract<TrainEvent, { kind: "finished" }>;
  assert.equal(end.before?.accuracy, said.before.accuracy);
  assert.equal(end.after?.accuracy, said.after.accuracy);
  assert.ok(Math.abs((end.after?.loss ?? 0) - said.after.loss) < 1e-5);
  assert.ok(Math.abs(said.restored.loss - said.after.loss) < 1e-5);
  assert.ok(said.after.accuracy > said.before.accuracy);
  console.log(`# losses differ by ${worst} at most; accuracy ${said.before.accuracy} -> ${said.after.accuracy}`);
  assert.equal(await words(page, ".score:last-child strong"), `${Math.round(100 * said.after.accuracy)}%`);

  const [chooser] = await Promise.all([page.waitForFileChooser(), press(page, "Take from a file")]);
  await chooser.accept([host]);
  await says(page, "[role=status]", "The model from the file");
  const taken = (await stored(page, "personal.state")) ?? Buffer.alloc(0);
  // The same tensors: only the generation in the header differs.
  const data = (bytes: Buffer) => bytes.subarray(-590_000);
  assert.equal(Buffer.compare(data(taken), data(readFileSync(host))), 0);
});

test("undo, redo and reset, and all of it is there after the page is loaded again", async () => {
  const standing = "[aria-labelledby=compare] .quiet";
  await press(page, "Personalise");
  await says(page, "[role=status]", "Done");
  await press(page, "Undo");
  await says(page, standing, "Undone");
  await press(page, "Bring it back");
  await says(page, standing, "in use, and kept");
  await page.reload();
  await ready(page);
  assert.match(await words(page, standing), /in use, and kept/);
  assert.equal(
    (await page.$$(".changes li")).length > 0 || (await words(page, "[aria-labelledby=compare]")).includes("No answer"),
    true,
  );
  await press(page, "Reset to original");
  await says(page, standing, "The original model");
  await press(page, "Bring it back");
  await says(page, standing, "in use, and kept");
});

test("with the keyboard alone: choose, draw, add, delete", async () => {
  const focused = () =>
    page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.textContent);
  const tabTo = async (name: string) => {
    for (let i = 0; i < 60; i++) {
      await page.keyboard.press("Tab");
      if ((await focused())?.startsWith(name)) return;
    }
    assert.fail(`no way to ${name} by Tab`);
  };
  await page.reload();
  await ready(page);
  await tabTo("1, 4 drawings");
  await page.keyboard.press("Enter");
  await tabTo("Write 1 here");
  await page.keyboard.press("Space");
  for (let i = 0; i < 6; i++) await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Space");
  await says(page, ".reading:last-child .best", "1");
  await page.keyboard.press("Enter");
  await says(page, "[role=status]", "Added as 1. 41 drawings");
  await tabTo("Drawing 5 of 1");
  await page.keyboard.press("Space");
  await tabTo("Delete");
  await page.keyboard.press("Enter");
  await says(page, "[role=status]", "Deleted");
  assert.equal((await page.$$(".gallery li")).length, 4);
});

test("a symbol of one's own is learned", async () => {
  await press(page, "+");
  await ((await page.waitForSelector("form input")) as ElementHandle).type("★");
  await press(page, "OK");
  for (let i = 0; i < 4; i++) {
    await draw(
      page,
      [
        [
          [100, 300],
          [500, 300 + i],
          [200, 540],
          [300, 60],
          [420, 540],
          [100, 300 + 3 * i],
        ],
      ],
      SIDE,
    );
    await press(page, "Add as ★");
  }
  await press(page, "Personalise");
  await says(page, "[role=status]", "Done");
  await draw(
    page,
    [
      [
        [105, 300],
        [500, 305],
        [205, 540],
        [300, 62],
        [420, 538],
        [105, 302],
      ],
    ],
    SIDE,
  );
  await says(page, ".reading:last-child .best", "★");
});

test("nothing left the tab", () => {
  assert.deepEqual(elsewhere, []);
  assert.deepEqual(
    site.asked.filter((request) => !request.startsWith("GET ")),
    [],
  );
});

/** The steps that a training of these drawings is made of, and those that it is judged by. */
function lessonsOf(noted: Notes): { held: object[]; steps: { rate: number; rows: object[] }[] } {
  const { preprocessing, recipe, samples } = description;
  const lesson = (each: Notes["drawings"][number]) => labelled(imageOf(each.strokes, preprocessing), each.label);
  const replay = builtInSamples(new Uint8Array(readFileSync(`${ASSETS}/assets/${samples.file}`)), description);
  const plan = whole({ epochs: recipe.epochs, replay: { samples: replay, share: recipe.replay } });
  const curriculum = new Curriculum(noted.drawings.filter((each) => !each.heldOut).map(lesson), plan, 8);
  const plain = (sample: ReturnType<typeof lesson>) => ({
    image: [...(sample.inputs.x ?? [])],
    label: sample.targets.y?.[0],
  });
  return {
    held: noted.drawings
      .filter((each) => each.heldOut)
      .map(lesson)
      .map(plain),
    steps: Array.from({ length: recipe.epochs }, (_, epoch) => curriculum.batches(epoch))
      .flat()
      .map((batch) => ({
        rate: recipe.learning_rate,
        rows: batch.rows.map(plain),
      })),
  };
}

async function downloaded(path: string): Promise<Buffer> {
  for (let i = 0; i < 6000; i++) {
    try {
      const file = readFileSync(path);
      if (file.length > 0) return file;
    } catch {
      // Not there yet.
    }
    await setTimeout(50);
  }
  return assert.fail("nothing was downloaded");
}
