/**
 * How long the page of dist/page takes on slow lines: until it is drawn, until a drawing can be taught, until the model
 * answers; and the bytes that came in until then. Each time the first visit of a new browser.
 *
 *     npm run build && node measure.mjs
 *
 * The server holds every answer back for the line's latency and shares its rate among all answers, workers' too.
 */
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import puppeteer from "puppeteer-core";

const PAGE = "dist/page";
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json" };
/** Bits a second and milliseconds. The first is what Lighthouse's phone has; the others as Chromium applies them. */
const LINES = {
  "1.6 Mbit/s, 150 ms": [1.6e6, 150],
  "Slow 4G": [1.44e6, 562],
  "Fast 4G": [8.1e6, 165],
};
const SLICE = 1400;

/** Hands out slices of all answers in turn, at the rate of the line. */
function line(bitsPerSecond, latency) {
  const waiting = [];
  let isBusy = false;
  let sent = 0;
  async function pump() {
    isBusy = true;
    let due = performance.now();
    while (waiting.length > 0) {
      const answer = waiting.shift();
      const slice = answer.body.subarray(answer.at, answer.at + SLICE);
      answer.at += SLICE;
      sent += slice.length;
      due = Math.max(due, performance.now() - 20) + (8000 * slice.length) / bitsPerSecond;
      if (due > performance.now() + 2) await setTimeout(due - performance.now());
      if (answer.at < answer.body.length) {
        answer.response.write(slice);
        waiting.push(answer);
      } else answer.response.end(slice);
    }
    isBusy = false;
  }
  return {
    sent: () => sent,
    async send(response, body) {
      await setTimeout(latency);
      waiting.push({ response, body, at: 0 });
      if (!isBusy) void pump();
    },
  };
}

async function visit(bitsPerSecond, latency, packs) {
  const shaped = line(bitsPerSecond, latency);
  const server = createServer(async (request, response) => {
    const path = new URL(request.url, "http://site").pathname.replace(/\/$/, "/index.html");
    const type = TYPES[extname(path)] ?? "application/octet-stream";
    const headers = { "content-type": type, "cache-control": "max-age=600" };
    try {
      let body = await readFile(join(PAGE, path));
      if (packs && extname(path) in TYPES) {
        body = gzipSync(body);
        headers["content-encoding"] = "gzip";
      }
      response.writeHead(200, { ...headers, "content-length": body.length });
      await shaped.send(response, body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
  try {
    const page = await browser.newPage();
    await page.setViewport({ width: 390, height: 844 });
    await page.goto("about:blank");
    const began = performance.now();
    const figure = () =>
      `${((performance.now() - began) / 1000).toFixed(1)} s (${Math.round(shaped.sent() / 1000)} KB)`;
    await page.goto(`http://127.0.0.1:${server.address().port}/`, { waitUntil: "domcontentloaded" });
    const pad = await page.waitForSelector(".pad");
    const drawn = figure();
    const { x, y, width } = await pad.boundingBox();
    await page.mouse.move(x + width / 2, y + width / 5);
    await page.mouse.down();
    await page.mouse.move(x + width / 2, y + (4 * width) / 5, { steps: 5 });
    await page.mouse.up();
    const says = (wait) => page.waitForFunction(wait, { polling: 20, timeout: 120_000 });
    await says(() => document.querySelector(".row .main:enabled"));
    const teaches = figure();
    await says(() => /\d/.test(document.querySelector(".best")?.textContent ?? ""));
    return [drawn, teaches, figure()];
  } finally {
    await browser.close();
    server.close();
    server.closeAllConnections();
  }
}

console.log("| line | server packs scripts | drawn | teaches | answers |\n|---|---|---|---|---|");
for (const [name, [bitsPerSecond, latency]] of Object.entries(LINES)) {
  for (const packs of [false, true]) {
    console.log(`| ${[name, packs ? "yes" : "no", ...(await visit(bitsPerSecond, latency, packs))].join(" | ")} |`);
  }
}
