import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import type { Browser, ElementHandle, Page } from "puppeteer-core";
import { draw, launch, press, ready, Site, says, words } from "./browser.ts";

const ONE = [
  [
    [300, 100],
    [300, 500],
  ],
];
const SIDE = 600;

let browser: Browser;
let site: Site;
let page: Page;

before(async () => {
  [browser, site] = [await launch(), await Site.open()];
  page = await browser.newPage();
});

after(async () => {
  await browser.close();
  site.close();
});

/** Bytes of what came so far, packed as servers pack it. */
function weight(): number {
  return [...site.sent.values()].reduce((sum, body) => sum + gzipSync(body).length, 0);
}

test("a user draws and teaches when 25 KB have come, whatever becomes of the model", async () => {
  site.held = /worker|litert|digits/;
  await page.goto(site.url);
  await page.waitForSelector(".pad");
  await draw(page, ONE, SIDE);
  assert.equal((await page.$$(".pad polyline")).length, 2);
  await says(page, "[role=status]", "You can draw");
  await press(page, "1");
  await press(page, "Add as 1");
  await says(page, "[role=status]", "Added as 1. 1 drawings");
  await press(page, "+");
  await ((await page.waitForSelector("form input")) as ElementHandle).type("★");
  await press(page, "OK");
  await draw(page, ONE, SIDE);
  await press(page, "Add as ★");
  await says(page, "[role=status]", "2 drawings in all");
  await press(page, "Add somebody");
  await says(page, "[role=status]", "40 drawings added");
  site.sent.delete("/hand.json");
  assert.ok(weight() < 25_000, `${weight()} bytes: ${[...site.sent.keys()]}`);
  assert.match(await words(page, "[aria-labelledby=personalise] button:disabled"), /The model is loading… \d+%/);
});

test("what was taught before the model is there is kept, read and learned", async () => {
  await page.reload();
  await says(page, ".chip:nth-child(3)", "5 drawings");
  await draw(page, ONE, SIDE);
  assert.equal(await words(page, ".reading .best"), "–");
  site.release();
  await ready(page);
  await says(page, ".reading .best", "1");
  await press(page, "Personalise");
  await says(page, "[role=status]", "Done");
});

test("all of it is below 2.7 MB on a server that packs nothing", () => {
  const weighed = [...site.sent].filter(([path]) => !/hand|service-worker|compat/.test(path));
  const sum = weighed.reduce((sum, [, body]) => sum + body.length, 0);
  assert.ok(sum < 2_700_000, `${sum} bytes`);
});
