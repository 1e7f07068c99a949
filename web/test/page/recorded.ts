import type { Page } from "puppeteer-core";
import type { TrainEvent } from "../../trainer.ts";

/** Lets the page remember what its worker tells of trainings. */
export async function record(page: Page): Promise<void> {
  await page.evaluateOnNewDocument(() => {
    const events: unknown[] = [];
    Object.assign(globalThis, { events });
    const Plain = globalThis.Worker;
    globalThis.Worker = class extends Plain {
      constructor(script: string | URL) {
        super(script);
        this.addEventListener("message", ({ data }) => "event" in data && events.push(data.event));
      }
    };
  });
}

/** What the worker told since the page was loaded. */
export async function recorded(page: Page): Promise<TrainEvent[]> {
  return await page.evaluate(() => (globalThis as unknown as { events: TrainEvent[] }).events);
}

/** A file of the page's store, or null. */
export async function stored(page: Page, name: string): Promise<Buffer | null> {
  const bytes = await page.evaluate(async (name) => {
    const file = await (globalThis as unknown as Files).inStore<ArrayBuffer | undefined>("readonly", (files) =>
      files.get(name),
    );
    return file ? Array.from(new Uint8Array(file)) : null;
  }, name);
  return bytes && Buffer.from(bytes);
}

/** Puts a file into the page's store, behind its back. */
export async function smuggle(page: Page, name: string, file: Buffer): Promise<void> {
  await page.evaluate(
    async (name, bytes) => {
      const { buffer } = Uint8Array.from(bytes);
      await (globalThis as unknown as Files).inStore("readwrite", (files) => files.put(buffer, name));
    },
    name,
    [...file],
  );
}

interface Files {
  inStore<T>(mode: IDBTransactionMode, work: (files: IDBObjectStore) => IDBRequest<T>): Promise<T>;
}

/** What `stored` and `smuggle` use in the page. */
export async function openDrawer(page: Page): Promise<void> {
  await page.evaluateOnNewDocument(() => {
    const inStore = (mode: IDBTransactionMode, work: (files: IDBObjectStore) => IDBRequest) =>
      new Promise((resolve, reject) => {
        const opening = indexedDB.open("pocketune digits");
        opening.onsuccess = () => {
          const request = work(opening.result.transaction("files", mode).objectStore("files"));
          request.onsuccess = () => {
            opening.result.close();
            resolve(request.result);
          };
          request.onerror = () => reject(request.error);
        };
      });
    Object.assign(globalThis, { inStore });
  });
}
