import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { Incoming } from "../federated/incoming.ts";
import * as messages from "../federated/messages.ts";
import { MetricRecord, type ObjectTree, PullMessagesResponse, PullObjectResponse } from "../federated/messages.ts";
import { arrayIn, npyOf } from "../federated/npy.ts";
import { Outgoing } from "../federated/objects.ts";
import { Schema } from "../federated/protobuf.ts";
import { planOf } from "../federated/round-plan.ts";
import { metricsOf } from "../federated/values.ts";
import { RefusedRoundError } from "../federated.ts";
import type { Bytes } from "../trainer.ts";
import { built, calls, expected, fleetAt, objects, Replay, trees } from "./recorded.ts";

const PROTO = "../android_app/federated/src/main/proto/flwr/proto";
const utf8 = (text: string) => new TextEncoder().encode(text);

test("fields and numbers of the messages are those of Flower's .proto files", () => {
  const text = readdirSync(PROTO)
    .map((name) => readFileSync(`${PROTO}/${name}`, "utf8"))
    .join("\n");
  let compared = 0;
  for (const [name, schema] of Object.entries(messages)) {
    if (!(schema instanceof Schema)) continue;
    const called = name === "FlowerError" ? "Error" : name;
    const start = text.search(new RegExp(`message ${called} \\{`));
    assert.ok(start >= 0, name);
    const body = text.slice(start, text.indexOf("\nmessage ", start + 1));
    for (const [field, { number }] of Object.entries(schema.fields)) {
      assert.match(body, new RegExp(`\\b${field} = ${number};`), `${name}.${field}`);
      compared++;
    }
  }
  assert.ok(compared > 50, `${compared}`);
});

test("what the server sent is what the host built", async () => {
  const fleet = await fleetAt(new Replay());
  const asked = await fleet.pull();
  assert.equal(asked?.head.message_type, "train");
  assert.deepEqual(asked?.records.arrays.get("arrays"), built);
  const config = asked?.records.configs.get("config") ?? new Map();
  assert.equal(config.get("program"), expected.identity);
  const plan = { epochs: 2, steps: null, learningRate: 0.1, seed: 0, proximalMu: null, clippingNorm: null, round: 1 };
  assert.deepEqual(planOf(config, {}), plan);
  assert.equal((await fleet.pull())?.head.message_type, "evaluate");
  assert.equal(await fleet.pull(), null);
});

test("calls are those of Python's client", async () => {
  const replay = new Replay();
  await (await fleetAt(replay)).pull();
  const names = new Set(replay.requests.map(([name]) => name));
  assert.deepEqual(names, new Set(["activate-node", "pull-messages", "pull-object", "confirm-message-received"]));
  for (const [name, request] of replay.requests) {
    if (name === "activate-node") continue;
    assert.ok(
      calls.some((call) => call.name === name && Buffer.compare(call.request, request) === 0),
      name,
    );
  }
});

test("an answer of the same numbers has the ids of Flower's", async () => {
  assert.ok(trees.length === 2);
  for (const tree of trees) {
    const { head, records } = new Incoming(objects, 2 ** 20).message(tree.object_id);
    const figures = MetricRecord.decode(body(objects.get(idOfKind("MetricRecord", tree)))).items.map(
      ({ key, value }) => [key, value?.sint64 ?? value?.double] as const,
    );
    const metrics = await Outgoing.of("MetricRecord", metricsOf(Object.fromEntries(figures) as Record<string, number>));
    const again = await Outgoing.message(
      head,
      await Outgoing.records(records.arrays.get("arrays") ?? null, { metrics }),
    );
    assert.equal(again.id, tree.object_id);
    assert.deepEqual(again.tree(), tree);
    for (const { id, content } of again.all()) assert.deepEqual(content, objects.get(id));
  }
});

test("a reply goes to whom asked, and says what was asked", async () => {
  const replay = new Replay();
  const fleet = await fleetAt(replay);
  const asked = (await fleet.pull()) ?? assert.fail();
  const metrics = await Outgoing.of("MetricRecord", metricsOf({ "num-examples": 3n }));
  const sent = await fleet.reply(asked.head, await Outgoing.records(built, { metrics }), 0.5);
  assert.equal(
    sent,
    [...replay.objects.values()].reduce((sum, content) => sum + content.length, 0),
  );
  const [reply] = replay.pushed;
  assert.ok(reply?.content, "left out, the server answers 500");
  const head = reply?.metadata ?? assert.fail();
  assert.equal(head.reply_to_message_id, asked.head.message_id);
  assert.deepEqual([head.src_node_id, head.dst_node_id], [asked.head.dst_node_id, asked.head.src_node_id]);
  assert.ok(head.src_node_id > BigInt(Number.MAX_SAFE_INTEGER), "the recorded id shows that ids are no numbers");
  const { records } = new Incoming(replay.objects, 2 ** 20).message(head.message_id);
  assert.deepEqual(records.arrays.get("arrays"), built);
});

test("a hostile server at worst ends the round, and is told why", async () => {
  const none = (name: string, answer: Bytes) =>
    name === "pull-object"
      ? PullObjectResponse.encode({ ...PullObjectResponse.decode(answer), object_content: new Uint8Array(40) })
      : answer;
  assert.match(await refused(none), /not what its id says/);
  assert.match(await refused((name, answer) => (name === "pull-messages" ? at(answer, deep(9)) : answer)), /6 deep/);
  assert.match(
    await refused((name, answer) => (name === "pull-messages" ? at(answer, wide(20_000)) : answer)),
    /20001 objects/,
  );
  assert.match(await refused((_, answer) => answer, 100), /larger than 100 bytes/);
  for (const bad of [Uint8Array.of(9, 9, 9), Uint8Array.of(18, 200, 1, 0), at(calls[2]?.response, deep(1500))]) {
    const said = await refused((name, answer) => (name === "pull-messages" ? bad : answer), 2 ** 20, false);
    assert.match(said, /does not answer as a SuperLink does/);
  }
});

test("objects that are none are refused", async () => {
  const opened = (all: readonly Outgoing[], root: Outgoing) => {
    const incoming = new Incoming(new Map(all.map(({ id, content }) => [id, content])), 1000);
    return () => incoming.message(root.id);
  };
  const of = Outgoing.of;
  const dict = await of("RecordDict", utf8("{}"));
  assert.throws(opened([dict], dict), /a RecordDict where a Message is expected/);
  for (const text of ["[", "[1]", "null", '{"arrays": "none"}', '{"arrays": 3}']) {
    const message = await of("Message", new Uint8Array(), [await of("RecordDict", utf8(text))]);
    assert.throws(opened(message.all(), message), RefusedRoundError, text);
  }
  const message = await of("Message", new Uint8Array(), [dict]);
  assert.throws(opened([message], message), /is missing/);
  // One chunk a thousand times over.
  const chunk = await of("ArrayChunk", new Uint8Array(10));
  const indices = new Array(1000).fill(0);
  const head = { dtype: "float32", shape: [1], stype: "numpy.ndarray", arraychunk_ids: indices };
  const array = await of("Array", utf8(JSON.stringify(head)), [chunk]);
  const record = await of("ArrayRecord", utf8(JSON.stringify({ w: array.id })), [array]);
  const bomb = await of("Message", new Uint8Array(), [
    await of("RecordDict", utf8(JSON.stringify({ arrays: record.id })), [record]),
  ]);
  assert.throws(opened(bomb.all(), bomb), /larger than 1000 bytes/);
});

test("arrays are NumPy's files, and what is none is refused", () => {
  for (const shape of [[], [0], [3], [2, 3], [1, 2, 1]]) {
    const numbers = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => i / 3);
    const bytes = npyOf({ shape, numbers });
    assert.equal((bytes.length - numbers.byteLength) % 64, 0);
    assert.deepEqual(arrayIn("w", bytes), { shape, numbers });
  }
  const file = (header: string, data: Uint8Array = new Uint8Array(8)) => {
    const start = utf8(`\x93NUMPY\x01\x00`).slice(1);
    start[0] = 0x93;
    return Uint8Array.from([...start, header.length & 255, header.length >> 8, ...utf8(header), ...data]);
  };
  const header = (type: string, order = "False", shape = "(2,)") =>
    `{'descr': '${type}', 'fortran_order': ${order}, 'shape': ${shape}}`;
  const doubles = new Uint8Array(Float64Array.of(0.5, 1e300).buffer);
  assert.deepEqual([...arrayIn("w", file(header("<f8"), doubles)).numbers], [0.5, Number.NaN]);
  for (const [bytes, why] of [
    [file(header("<f4", "True")), /Fortran/],
    [file(header("|O")), /came as \|O, and is float32/],
    [file(header("<i4")), /came as <i4/],
    [file(header("<f4", "False", "(3,)")), /\[3\] of <f4 in 8 bytes/],
    [file(header("<f4", "False", "(99999999999,)")), /shape/],
    [file(header("<f4", "False", "(65536, 65536, 65536)")), /in 8 bytes/],
    [file("{}"), /its head cannot be read/],
    [file(header("<f4")).subarray(0, 40), /cut short/],
    [new Uint8Array(64), /no .npy file/],
  ] as const) {
    assert.throws(() => arrayIn("w", bytes.slice()), why);
  }
});

async function refused(change: (name: string, answer: Bytes) => Bytes, most = 2 ** 20, isTold = true): Promise<string> {
  const replay = new Replay(change);
  const fleet = await fleetAt(replay, most);
  const error = await fleet.pull().then(
    () => assert.fail("it was taken"),
    (error) => error,
  );
  assert.ok(error instanceof RefusedRoundError, String(error));
  assert.deepEqual(
    replay.pushed.map((message) => message.error?.reason),
    isTold ? [error.message] : [],
  );
  return error.message;
}

function at(answer: Bytes | undefined, tree: ObjectTree): Bytes {
  const { messages_list } = PullMessagesResponse.decode(answer ?? new Uint8Array());
  return PullMessagesResponse.encode({ messages_list, message_object_trees: [tree] });
}

function deep(levels: number): ObjectTree {
  let tree: ObjectTree = { object_id: "0", children: [] };
  for (let i = 1; i <= levels; i++) tree = { object_id: `${i}`, children: [tree] };
  return tree;
}

function wide(count: number): ObjectTree {
  const children = Array.from({ length: count }, (_, i) => ({ object_id: `${i}`, children: [] }));
  return { object_id: "r", children };
}

function idOfKind(kind: string, tree: ObjectTree): string {
  const all = (each: ObjectTree): string[] => [each.object_id, ...each.children.flatMap(all)];
  const starts = (id: string) => new TextDecoder().decode(objects.get(id)).startsWith(`${kind} `);
  return all(tree).find(starts) ?? assert.fail(kind);
}

function body(content: Bytes | undefined): Bytes {
  return (content ?? new Uint8Array()).subarray((content?.indexOf(0) ?? 0) + 1);
}
