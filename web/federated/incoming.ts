import type { Bytes } from "../trainer.ts";
import { FederatedError, RefusedRoundError } from "./errors.ts";
import { joined } from "./http.ts";
import { Message } from "./messages.ts";
import { arrayIn, type Tensor } from "./npy.ts";
import { configIn, type Entry } from "./values.ts";

/** What a message carries, by kind and by name. */
export interface Records {
  readonly arrays: ReadonlyMap<string, ReadonlyMap<string, Tensor>>;
  readonly configs: ReadonlyMap<string, ReadonlyMap<string, Entry>>;
}

interface Opened {
  readonly type: string;
  readonly children: readonly string[];
  readonly body: Bytes;
}

/**
 * Objects that came, put together. What is deeper than a message, its records, their arrays and the chunks of these is never
 * followed.
 */
export class Incoming {
  private taken = 0;

  /** `contents` by their ids, which they have; `most`: bytes that the arrays may have together. */
  constructor(
    private readonly contents: ReadonlyMap<string, Bytes>,
    private readonly most: number,
  ) {}

  /** The message of an id: its head, and its records. Throws RefusedRoundError. */
  message(id: string): { head: Message; records: Records } {
    try {
      const { body, children } = this.open(id, "Message");
      const [first, ...others] = children;
      if (first === undefined || others.length > 0) refuse("it has no records");
      const records = this.open(first, "RecordDict");
      return { head: Message.decode(body), records: this.records(records) };
    } catch (error) {
      if (error instanceof FederatedError) throw error;
      // Of bytes that are no message or no JSON.
      refuse(error instanceof Error ? error.message : "it is no message");
    }
  }

  private records(dict: Opened): Records {
    const [arrays, configs] = [new Map<string, Map<string, Tensor>>(), new Map<string, Map<string, Entry>>()];
    for (const [name, id] of this.named(dict)) {
      const record = this.openAny(id);
      if (record.type === "ArrayRecord") arrays.set(name, this.arrays(record));
      if (record.type === "ConfigRecord") configs.set(name, configIn(record.body));
    }
    return { arrays, configs };
  }

  private arrays(record: Opened): Map<string, Tensor> {
    return new Map(this.named(record).map(([name, id]) => [name, this.array(name, this.open(id, "Array"))]));
  }

  private array(name: string, array: Opened): Tensor {
    const head = new Map(json(array));
    if (head.get("stype") !== "numpy.ndarray") refuse(`${name} is no array of NumPy`);
    const chunks = head.get("arraychunk_ids");
    if (!Array.isArray(chunks)) refuse(`${name} has no chunks`);
    const parts = chunks.map((index: unknown) => {
      const id = typeof index === "number" ? array.children[index] : undefined;
      return this.open(id ?? refuse(`${name} has no chunk ${index}`), "ArrayChunk").body;
    });
    this.taken += parts.reduce((sum, part) => sum + part.length, 0);
    if (this.taken > this.most) refuse(`its arrays are larger than ${this.most} bytes`);
    return arrayIn(name, joined(parts));
  }

  private named(opened: Opened): [string, string][] {
    return json(opened).map(([name, id]) => {
      const isChild = typeof id === "string" && opened.children.includes(id);
      return [name, isChild ? id : refuse(`${name} has no object`)];
    });
  }

  private open(id: string, type: string): Opened {
    const opened = this.openAny(id);
    if (opened.type !== type) refuse(`a ${opened.type} where a ${type} is expected`);
    return opened;
  }

  private openAny(id: string): Opened {
    const content = this.contents.get(id) ?? refuse(`object ${id.slice(0, 16)} is missing`);
    const end = content.indexOf(0);
    if (end < 0) refuse(`object ${id.slice(0, 16)} has no head`);
    const [type = "", children = "", length, ...more] = new TextDecoder().decode(content.subarray(0, end)).split(" ");
    const body = content.subarray(end + 1);
    if (length !== String(body.length) || more.length > 0) refuse(`object ${id.slice(0, 16)} has a bad head`);
    return { type, children: children.split(",").filter(Boolean), body };
  }
}

/** The entries of an object of JSON. Throws SyntaxError, TypeError and RefusedRoundError. */
function json({ type, body }: Opened): [string, unknown][] {
  const read: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  if (typeof read !== "object" || read === null || Array.isArray(read)) refuse(`a ${type} is none`);
  return Object.entries(read);
}

function refuse(why: string): never {
  throw new RefusedRoundError(`the server's message cannot be read: ${why}`);
}
