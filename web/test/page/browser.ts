import { existsSync, readFileSync, statSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { extname, join, normalize } from "node:path";
import puppeteer, { type Browser, type Page } from "puppeteer-core";

const PAGE = "dist/page";
const TYPES: { readonly [extension: string]: string } = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".svg": "image/svg+xml",
  ".webmanifest": "application/manifest+json",
};

/** The page as any static server gives it away: no headers but the type. */
export class Site {
  private readonly server: Server;
  /** What was asked for, in order. */
  readonly asked: string[] = [];
  /** Answers that a test puts in place of a file. */
  readonly replaced = new Map<string, Buffer>();
  /** Files that are not there. */
  missing = /^$/;
  /** Files that do not come until `release`. */
  held = /^$/;
  /** What was given away. */
  readonly sent = new Map<string, Buffer>();
  private readonly waiting: (() => void)[] = [];

  private constructor(folder: string) {
    this.server = createServer((request, response) => {
      const path = normalize(new URL(request.url ?? "/", "http://site").pathname).replace(/\/$/, "/index.html");
      this.asked.push(`${request.method} ${path}`);
      const file = join(folder, path);
      const other = this.replaced.get(path);
      const isThere = existsSync(file) && statSync(file).isFile() && !this.missing.test(path);
      if (!other && !isThere) return void response.writeHead(404).end();
      const answer = () => {
        const body = other ?? readFileSync(file);
        this.sent.set(path, body);
        const type = TYPES[extname(path)] ?? "application/octet-stream";
        response.writeHead(200, { "content-type": type, "cache-control": "max-age=600" }).end(body);
      };
      if (this.held.test(path)) this.waiting.push(answer);
      else answer();
    });
  }

  static async open(folder = PAGE): Promise<Site> {
    const site = new Site(folder);
    await new Promise<void>((resolve) => site.server.listen(0, "127.0.0.1", resolve));
    return site;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}/`;
  }

  release(): void {
    this.held = /^$/;
    for (const answer of this.waiting.splice(0)) answer();
  }

  close(): void {
    this.server.close();
    this.server.closeAllConnections();
  }
}

/** Chromium; with a folder, one that keeps its storage there. */
export async function launch(folder?: string): Promise<Browser> {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu"];
  const kept = folder ? { userDataDir: folder } : {};
  return await puppeteer.launch({ executablePath, args: ["--no-sandbox", ...quiet], ...kept });
}

/** A phone and a desk. */
export const WINDOWS = { phone: { width: 390, height: 844 }, desk: { width: 1280, height: 900 } };

export interface Look {
  readonly window?: keyof typeof WINDOWS;
  readonly isDark?: boolean;
}

/** A tab of its own, with a storage of its own, at the page. */
export async function visit(
  browser: Browser,
  site: Site,
  { window = "desk", isDark = false }: Look = {},
): Promise<Page> {
  const page = await (await browser.createBrowserContext()).newPage();
  await page.setViewport(WINDOWS[window]);
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: isDark ? "dark" : "light" }]);
  await page.goto(site.url);
  return page;
}

export async function ready(page: Page): Promise<void> {
  await says(page, "[role=status]", "Ready");
}

/** Waits until an element says something. */
export async function says(page: Page, selector: string, words: string, timeout = 600_000): Promise<void> {
  const wait = (selector: string, words: string) => document.querySelector(selector)?.textContent?.includes(words);
  await page.waitForFunction(wait, { timeout, polling: 50 }, selector, words);
}

/** What an element says. */
export async function words(page: Page, selector: string): Promise<string> {
  return await page.$eval(selector, (element) => element.textContent ?? "");
}

/** Presses the button whose words begin so. */
export async function press(page: Page, name: string): Promise<void> {
  const button = `::-p-xpath(//button[starts-with(normalize-space(.), "${name}") and not(@disabled)])`;
  await (await page.waitForSelector(button))?.click();
}

/** Draws with the mouse, in a square of `side` units. */
export async function draw(
  page: Page,
  strokes: readonly (readonly (readonly number[])[])[],
  side: number,
): Promise<void> {
  const pad = await page.$(".pad");
  await pad?.scrollIntoView();
  const box = await pad?.boundingBox();
  if (!box) throw new Error("no pad");
  const place = ([x = 0, y = 0]: readonly number[]): [number, number] => [
    box.x + (x / side) * box.width,
    box.y + (y / side) * box.height,
  ];
  for (const stroke of strokes) {
    await page.mouse.move(...place(stroke[0] ?? []));
    await page.mouse.down();
    for (const point of stroke.slice(1)) await page.mouse.move(...place(point));
    await page.mouse.up();
  }
}
