import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Fleet } from "../federated/fleet.ts";
import { NodeKey } from "../federated/key.ts";
import {
  type Message,
  type ObjectTree,
  PullMessagesResponse,
  PullObjectRequest,
  PushMessagesRequest,
  PushMessagesResponse,
  PushObjectRequest,
  PushObjectResponse,
} from "../federated/messages.ts";
import { arrayIn, type Tensor } from "../federated/npy.ts";
import type { MessageOf } from "../federated/protobuf.ts";
import { type Bytes, labelled, type Sample } from "../trainer.ts";

/** A round of an unmodified SuperLink with a client in Python (`tests/federated/record.py`). */
const FOLDER = "../tests/federated/recorded";

export interface Call {
  readonly name: string;
  readonly request: Bytes;
  readonly response: Bytes;
}

export const file = (name: string): Bytes => new Uint8Array(readFileSync(`${FOLDER}/${name}`));
const decoded = (text: string): Bytes => new Uint8Array(Buffer.from(text, "base64"));

export const calls: Call[] = readFileSync(`${FOLDER}/round.jsonl`, "utf8")
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line))
  .map(({ call, request, response }) => ({ name: call, request: decoded(request), response: decoded(response) }));

type Listed = Record<string, { shape: number[]; numbers: number[] }>;

interface Expected {
  readonly identity: string;
  /** The same where the classes are called a, ü and c. */
  readonly labelled: string;
  readonly norm: number;
  readonly bytes: number;
  readonly arrays: Listed;
}
export const expected: Expected = JSON.parse(readFileSync(`${FOLDER}/expected.json`, "utf8"));

/** Arrays as they were written down. */
export function tensorsOf(listed: Listed): Map<string, Tensor> {
  const entries = Object.entries(listed).map(([name, { shape, numbers }]): [string, Tensor] => [
    name,
    { shape, numbers: Float32Array.from(numbers) },
  ]);
  return new Map(entries);
}

/** What the program had when it was built, as the host says. */
export const built = tensorsOf(expected.arrays);

export function assertClose(
  found: ReadonlyMap<string, Tensor>,
  wanted: ReadonlyMap<string, Tensor>,
  most = 1e-6,
): void {
  assert.deepEqual([...found.keys()], [...wanted.keys()]);
  for (const [name, { shape, numbers }] of wanted) {
    assert.deepEqual(found.get(name)?.shape, shape);
    const off = numbers.map((number, i) => Math.abs(number - (found.get(name)?.numbers[i] ?? Number.NaN)));
    assert.ok(
      off.every((each) => each <= most),
      `${name}: ${Math.max(...off)}`,
    );
  }
}

const called = (name: string) => calls.filter((call) => call.name === name);

/** The objects that the client in Python pushed. */
export const objects = new Map<string, Bytes>(
  called("push-object")
    .map(({ request }) => PushObjectRequest.decode(request))
    .map((asked) => [asked.object_id, asked.object_content.slice()]),
);

/** The ids of each of its answers. */
export const trees: ObjectTree[] = called("push-messages").flatMap(
  ({ request }) => PushMessagesRequest.decode(request).message_object_trees,
);

/** The client's rows: the arrays `x` and `y` of an archive whose files are not packed. */
export function rows(): Sample[] {
  const archive = file("rows.npz");
  const { shape, numbers } = arrayIn("x", npyIn(archive, "x.npy"));
  const [count = 0, width = 0] = shape;
  const labels = new Int32Array(npyIn(archive, "y.npy").slice(-4 * count).buffer);
  return [...labels].map((label, i) => labelled(numbers.slice(i * width, (i + 1) * width), label));
}

/** A file of an archive as `np.savez` writes it. */
function npyIn(archive: Bytes, wanted: string): Bytes {
  const view = new DataView(archive.buffer);
  for (let at = 0; view.getUint32(at, true) === 0x04034b50; ) {
    const [names, extra] = [view.getUint16(at + 26, true), view.getUint16(at + 28, true)];
    const name = new TextDecoder().decode(archive.subarray(at + 30, at + 30 + names));
    const short = view.getUint32(at + 18, true);
    const size = short === 0xffffffff ? Number(view.getBigUint64(at + 30 + names + 12, true)) : short;
    const start = at + 30 + names + extra;
    if (name === wanted) return archive.slice(start, start + size);
    at = start + size;
  }
  throw new Error(`there is no ${wanted}`);
}

type Changed = (name: string, answer: Bytes) => Bytes;

/** Answers a client as the SuperLink did, and keeps what it pushes; `change` makes of the right answer what is sent. */
export class Replay {
  readonly requests: [string, Bytes][] = [];
  readonly pushed: Message[] = [];
  readonly objects = new Map<string, Bytes>();
  /** What is still to be pulled. */
  readonly waiting = called("pull-messages")
    .map(({ response }) => response)
    .filter((response) => PullMessagesResponse.decode(response).messages_list.length > 0);
  /** The last answer counts: before it the sender was still pushing. */
  private readonly known = new Map(
    called("pull-object").map(({ request, response }) => [PullObjectRequest.decode(request).object_id, response]),
  );

  constructor(private readonly change: Changed = (_, answer) => answer) {}

  readonly call = async (name: string, request: Bytes): Promise<Bytes> => {
    this.requests.push([name, request]);
    return this.change(name, this.answer(name, request));
  };

  answer(name: string, request: Bytes): Bytes {
    if (name === "pull-messages") return this.waiting.shift() ?? new Uint8Array();
    if (name === "pull-object") return this.known.get(PullObjectRequest.decode(request).object_id) as Bytes;
    if (name === "push-messages") {
      const asked = PushMessagesRequest.decode(request);
      this.pushed.push(...asked.messages_list);
      const wanted = asked.message_object_trees.flatMap(ids);
      return PushMessagesResponse.encode({ objects_to_push: wanted, session_id: "s" });
    }
    if (name === "push-object") {
      const { object_id: id, object_content: content } = PushObjectRequest.decode(request);
      this.objects.set(id, content.slice());
      return PushObjectResponse.encode({ stored: true });
    }
    return called(name)[0]?.response ?? new Uint8Array();
  }
}

function ids({ object_id: id, children }: ObjectTree): string[] {
  return [id, ...children.flatMap(ids)];
}

export type Pulled = MessageOf<typeof PullMessagesResponse.fields>;

/** A node that a replay answers. */
export async function fleetAt(replay: Replay, most = 2 ** 20): Promise<Fleet> {
  const key = await NodeKey.generate();
  const fleet = new Fleet(key, most, () => 1.8e9, replay.call, new AbortController().signal);
  await fleet.join();
  return fleet;
}
