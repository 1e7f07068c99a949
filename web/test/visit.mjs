/** Opens a page in headless Chromium, and prints what it says in the console, until its input ends: `node visit.mjs URL`. */

import puppeteer from "puppeteer-core";

const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage();
page.on("console", (message) => console.log(`${message.type()}: ${message.text()}`));
page.on("pageerror", (error) => console.log(`error: ${error}`));
await page.goto(process.argv[2]);
process.stdin.resume().on("end", async () => {
  await browser.close();
});
