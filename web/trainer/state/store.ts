import type { Bytes } from "../bytes.ts";
import { BusyError, messageOf, StorageError } from "../errors.ts";

/**
 * Where files are kept. `write` happens whole or not at all, whatever ends it: a full storage, a killed tab, a power
 * failure. Both throw StorageError.
 */
export interface Store {
  read(name: string): Promise<Bytes | null>;
  /** Replaces some files at once; null removes one. */
  write(changes: Record<string, Bytes | null>): Promise<void>;
  close(): void;
}

const FILES = "files";

/** A store in the browser's IndexedDB, in a database of its own, for one tab at a time. */
export class BrowserStore implements Store {
  private constructor(
    private readonly database: IDBDatabase,
    private readonly release: () => void,
  ) {}

  /**
   * Opens the store of this name, or makes it. Throws BusyError while another tab or worker has it (with `wait`: only
   * when the signal says so), and StorageError.
   */
  static async open(name: string, wait?: AbortSignal): Promise<BrowserStore> {
    const release = await lock(`pocketune ${name}`, wait);
    try {
      const request = indexedDB.open(`pocketune ${name}`, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(FILES);
      return new BrowserStore(await result(request), release);
    } catch (error) {
      release();
      throw new StorageError(`the browser's storage cannot be opened: ${messageOf(error)}`);
    }
  }

  async read(name: string): Promise<Bytes | null> {
    try {
      const files = this.database.transaction(FILES).objectStore(FILES);
      const file: unknown = await result(files.get(name));
      return file instanceof ArrayBuffer ? new Uint8Array(file) : null;
    } catch (error) {
      throw new StorageError(`${name} cannot be read: ${messageOf(error)}`);
    }
  }

  async write(changes: Record<string, Bytes | null>): Promise<void> {
    try {
      const transaction = this.database.transaction(FILES, "readwrite", { durability: "strict" });
      const files = transaction.objectStore(FILES);
      for (const [name, file] of Object.entries(changes)) {
        if (file) files.put(file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength), name);
        else files.delete(name);
      }
      await done(transaction);
    } catch (error) {
      const isFull = error instanceof DOMException && error.name === "QuotaExceededError";
      const reason = isFull ? "the browser's storage is full" : messageOf(error);
      throw new StorageError(`${Object.keys(changes).join(", ")} cannot be written: ${reason}`);
    }
  }

  close(): void {
    this.database.close();
    this.release();
  }
}

/** A store that is gone with the page. */
export class MemoryStore implements Store {
  private readonly files = new Map<string, Bytes>();

  async read(name: string): Promise<Bytes | null> {
    return this.files.get(name)?.slice() ?? null;
  }

  async write(changes: Record<string, Bytes | null>): Promise<void> {
    for (const [name, file] of Object.entries(changes)) {
      if (file) this.files.set(name, file.slice());
      else this.files.delete(name);
    }
  }

  close(): void {}
}

/** Takes a lock that all tabs of this origin share, and gives what releases it. */
async function lock(name: string, wait?: AbortSignal): Promise<() => void> {
  return new Promise((resolve, reject) => {
    const options: LockOptions = wait ? { signal: wait } : { ifAvailable: true };
    const held = navigator.locks.request(name, options, (lock) => {
      if (!lock) throw new BusyError("it is open in another tab or window: close it there first");
      return new Promise<void>((release) => resolve(() => release()));
    });
    held.catch((error: unknown) => reject(error instanceof BusyError ? error : new BusyError(messageOf(error))));
  });
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function done(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}
