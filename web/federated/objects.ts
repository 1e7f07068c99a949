import type { Bytes } from "../trainer.ts";
import { joined } from "./http.ts";
import type { Metadata } from "./messages.ts";
import { Message, type ObjectTree } from "./messages.ts";
import { npyOf, type Tensor } from "./npy.ts";

/** Bytes of a chunk of an array. */
const CHUNK = 5_242_880;

/** The id of an object: lower hexadecimal sha256 of its content. */
export async function idOf(content: Bytes): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** An object that is to be sent, with those below it. */
export class Outgoing {
  private constructor(
    readonly id: string,
    readonly content: Bytes,
    readonly children: readonly Outgoing[],
  ) {}

  static async of(type: string, body: Bytes, children: readonly Outgoing[] = []): Promise<Outgoing> {
    const ids = [...new Set(children.map((child) => child.id))];
    const head = new TextEncoder().encode(`${type} ${ids.join(",")} ${body.length}\0`);
    const content = joined([head, body]);
    return new Outgoing(await idOf(content), content, children);
  }

  /** A message: its head without an id, and its records or its error. */
  static async message(head: Partial<Message>, records: Outgoing | null): Promise<Outgoing> {
    return await Outgoing.of("Message", Message.encode(head), records ? [records] : []);
  }

  /** Arrays, and other records by name. */
  static async records(
    arrays: ReadonlyMap<string, Tensor> | null,
    others: Record<string, Outgoing>,
  ): Promise<Outgoing> {
    const records: [string, Outgoing][] = arrays ? [["arrays", await Outgoing.arrays(arrays)]] : [];
    return await Outgoing.named("RecordDict", [...records, ...Object.entries(others)]);
  }

  private static async arrays(tensors: ReadonlyMap<string, Tensor>): Promise<Outgoing> {
    const arrays: [string, Outgoing][] = [];
    for (const [name, tensor] of tensors) arrays.push([name, await Outgoing.array(tensor)]);
    return await Outgoing.named("ArrayRecord", arrays);
  }

  private static async array(tensor: Tensor): Promise<Outgoing> {
    const file = npyOf(tensor);
    const chunks: Outgoing[] = [];
    for (let at = 0; at < file.length; at += CHUNK) {
      chunks.push(await Outgoing.of("ArrayChunk", file.slice(at, at + CHUNK)));
    }
    const ids = [...new Set(chunks.map((chunk) => chunk.id))];
    const indices = chunks.map((chunk) => ids.indexOf(chunk.id));
    const head = `{"dtype": "float32", "shape": [${tensor.shape.join(", ")}], "stype": "numpy.ndarray", "arraychunk_ids": [${indices.join(", ")}]}`;
    return await Outgoing.of("Array", new TextEncoder().encode(head), chunks);
  }

  /** An object whose body names those below it, in JSON as Python writes it, so that equal objects have the ids of Flower's. */
  private static async named(type: string, objects: readonly [string, Outgoing][]): Promise<Outgoing> {
    const entries = objects.map(([name, object]) => `${JSON.stringify(name)}: "${object.id}"`);
    const body = new TextEncoder().encode(`{${entries.join(", ")}}`);
    return await Outgoing.of(
      type,
      body,
      objects.map(([, object]) => object),
    );
  }

  tree(): ObjectTree {
    const children = new Map(this.children.map((child) => [child.id, child]));
    return { object_id: this.id, children: [...children.values()].map((child) => child.tree()) };
  }

  /** All of them, children first, each once. */
  all(): Outgoing[] {
    const found = [...this.children.flatMap((child) => child.all()), this];
    return [...new Map(found.map((object) => [object.id, object])).values()];
  }
}

/** The head of an answer to a message. `now`: seconds since 1970 by the server's clock. */
export function answering(to: Metadata, now: number): Metadata {
  return {
    run_id: to.run_id,
    message_id: "",
    src_node_id: to.dst_node_id,
    dst_node_id: to.src_node_id,
    reply_to_message_id: to.message_id,
    group_id: to.group_id,
    ttl: to.ttl - (now - to.created_at),
    message_type: to.message_type,
    created_at: now,
    src_task_id: undefined,
    dst_task_id: to.src_task_id,
  };
}
