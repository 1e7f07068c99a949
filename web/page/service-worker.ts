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

/** A WebAssembly module with an operation of "relaxed SIMD", by which LiteRT.js chooses between its two builds. */
const RELAXED = Uint8Array.of(
  ...[0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0],
  ...[65, 1, 253, 15, 65, 2, 253, 15, 253, 128, 2, 11],
);

worker.addEventListener("install", (event) => {
  const other = WebAssembly.validate(RELAXED) ? "/litert_wasm_compat_internal" : "/litert_wasm_internal";
  const needed = FILES.filter((file) => !file.includes(other));
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(needed)));
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
