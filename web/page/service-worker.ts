/** What the build puts in: all files of the page, and a digest of them. */
declare const FILES: string[];
declare const VERSION: string;

/** What of a service worker is used here; TypeScript knows either pages or workers. */
interface Scope {
  addEventListener(type: "install" | "activate", listener: (event: Extended) => void): void;
  addEventListener(type: "fetch", listener: (event: Extended & Asked) => void): void;
  readonly clients: { claim(): Promise<void> };
}

interface Extended {
  waitUntil(work: Promise<unknown>): void;
}

interface Asked {
  readonly request: Request;
  respondWith(response: Promise<Response>): void;
}

const worker = globalThis as unknown as Scope;
const PREFIX = "pocketune ";
const CACHE = PREFIX + VERSION;

worker.addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)));
});

// A new version takes over when the last tab with the old one is closed: the files of two are never mixed.
worker.addEventListener("activate", (event) => {
  event.waitUntil(dropOthers().then(() => worker.clients.claim()));
});

worker.addEventListener("fetch", (event) => {
  if (event.request.method === "GET") event.respondWith(answer(event.request));
});

async function dropOthers(): Promise<void> {
  const old = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
}

async function answer(request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  return (await cache.match(request, { ignoreSearch: true })) ?? (await fetch(request));
}
