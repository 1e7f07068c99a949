import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import type { Browser, Page } from "puppeteer-core";
import { draw, type Look, launch, press, ready, Site, says, visit, WINDOWS } from "./browser.ts";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const ONE = [
  [
    [50, 20],
    [50, 80],
  ],
];
const SCREENS = "target/screens";

let browser: Browser;
let site: Site;

before(async () => {
  mkdirSync(SCREENS, { recursive: true });
  [browser, site] = [await launch(), await Site.open()];
});

after(async () => {
  await browser.close();
  site.close();
});

/** Whatever axe finds, and whether anything lies beside the window. */
async function check(page: Page, name: string): Promise<void> {
  await page.screenshot({ path: `${SCREENS}/${name}.png`, fullPage: true });
  const found = await page.evaluate(`(async () => {
    if (!globalThis.axe) { ${AXE} }
    const { violations } = await axe.run();
    return violations.map(({ id, nodes }) => id + ": " + nodes.map((node) => node.html.slice(0, 90)).join(", "));
  })()`);
  assert.deepEqual(found, [], name);
  const overflow = await page.evaluate(
    () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
  );
  assert.equal(overflow, 0, `${name} is wider than its window`);
}

for (const window of Object.keys(WINDOWS) as (keyof typeof WINDOWS)[]) {
  for (const isDark of [false, true]) {
    const look: Look = { window, isDark };
    const name = `${window}-${isDark ? "dark" : "light"}`;
    test(`${name}: loading, empty, taught, training, after, error`, async () => {
      site.held = /wasm\.bin$/;
      const page = await visit(browser, site, look);
      await says(page, "[role=status]", "You can draw");
      await draw(page, ONE, 100);
      await check(page, `${name}-loading`);
      await press(page, "Clear");
      site.release();
      await ready(page);
      await check(page, `${name}-empty`);
      await press(page, "Add somebody");
      await says(page, "[role=status]", "drawings added");
      await page.locator(".gallery button").click();
      await check(page, `${name}-taught`);
      await press(page, "Personalise");
      await page.waitForFunction(() => Number(document.querySelector("progress")?.value) > 60);
      await press(page, "Pause");
      await says(page, "[aria-labelledby=personalise]", "Paused.");
      await check(page, `${name}-training`);
      await press(page, "Resume");
      await says(page, "[role=status]", "Done");
      await page.focus(".pad");
      for (const key of ["Space", ..."ArrowDown ".repeat(8).trim().split(" "), "Space"]) {
        await page.keyboard.press(key as "Space");
      }
      await says(page, ".reading:last-child .best", "1");
      await check(page, `${name}-after`);
      const second = await page.browserContext().newPage();
      await second.setViewport(WINDOWS[window]);
      await second.emulateMediaFeatures([{ name: "prefers-color-scheme", value: isDark ? "dark" : "light" }]);
      await second.goto(site.url);
      await second.waitForSelector("[role=alert]");
      await check(second, `${name}-error`);
      await page.browserContext().close();
    });
  }
}
