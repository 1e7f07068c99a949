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

/** The page's stores: of the model, and of what the user taught. */
type StoreName = "digits" | "notes";

/** A file of a store of the page, or null. */
export async function stored(page: Page, name: string, store: StoreName = "digits"): Promise<Buffer | null> {
  const read = async (store: StoreName, name: string) => {
    const { inStore } = globalThis as unknown as Files;
    const file = await inStore<ArrayBuffer | undefined>(store, "readonly", (files) => files.get(name));
    return file ? Array.from(new Uint8Array(file)) : null;
  };
  const bytes = await page.evaluate(read, store, name);
  return bytes && Buffer.from(bytes);
}

/** Puts a file into a store of the page, behind its back. */
export async function smuggle(page: Page, name: string, file: Buffer, store: StoreName = "digits"): Promise<void> {
  const write = async (store: StoreName, name: string, bytes: number[]) => {
    const { buffer } = Uint8Array.from(bytes);
    await (globalThis as unknown as Files).inStore(store, "readwrite", (files) => files.put(buffer, name));
  };
  await page.evaluate(write, store, name, [...file]);
}

interface Files {
  inStore<T>(store: StoreName, mode: IDBTransactionMode, work: (files: IDBObjectStore) => IDBRequest<T>): Promise<T>;
}

/** What `stored` and `smuggle` use in the page. */
export async function openDrawer(page: Page): Promise<void> {
  await page.evaluateOnNewDocument(() => {
    const inStore = (store: StoreName, mode: IDBTransactionMode, work: (files: IDBObjectStore) => IDBRequest) =>
      new Promise((resolve, reject) => {
        const opening = indexedDB.open(`pocketune ${store}`);
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
