import assert from "node:assert/strict";
import { test } from "node:test";
import { Exchange } from "../federated/exchange.ts";
import { federatedIdentity } from "../federated/identity.ts";
import { Incoming } from "../federated/incoming.ts";
import { Metadata } from "../federated/messages.ts";
import type { Tensor } from "../federated/npy.ts";
import { adopt, type Bounds, LostServerError, Participant } from "../federated.ts";
import { Manifest } from "../trainer/manifest/manifest.ts";
import { MemoryStore, Program, Trainer } from "../trainer.ts";
import { inNode } from "./litert.ts";
import { assertClose, built, expected, file, fleetAt, objects, Replay, rows, trees } from "./recorded.ts";
import { type Refusal, refusing, served } from "./served.ts";

const runtime = inNode();
const program = await Program.open(file("program.tflite"));
const config = new Map<string, string | number | bigint>([
  ["program", expected.identity],
  ["epochs", 2n],
  ["learning-rate", 0.1],
]);

async function participant(bounds: Bounds = {}): Promise<Participant> {
  return await Participant.open(program, runtime, new MemoryStore(), bounds);
}

test("identity, arrays and the norm's bound are the host's", async () => {
  const exchange = await Exchange.of(program);
  assert.equal(exchange.identity, expected.identity);
  const labels = ["a", "ü", "c"];
  assert.equal(await federatedIdentity(new Manifest({ ...program.manifest.fields, labels })), expected.labelled);
  const parameters = [...exchange.trained.keys()];
  const own = new Manifest({
    ...program.manifest.fields,
    labels,
    labelled: [{ output: "logits", place: 0, parameters }],
  });
  assert.equal(await federatedIdentity(own, new Set(parameters)), expected.identity);
  assert.equal(await federatedIdentity(own, new Set(parameters.slice(1))), expected.labelled);
  assert.ok(Math.abs(exchange.norm - expected.norm) < 1e-9);
  assert.equal(exchange.bytes(false), expected.bytes);
  const shapes = [...exchange.trained].map(([name, { shape }]) => [name, shape]);
  assert.deepEqual(
    shapes,
    [...built].map(([name, { shape }]) => [name, shape]),
  );
});

test("a round gives the arrays and figures of Python's client", async () => {
  const own = await participant();
  const [first, second] = trees.map((tree) => new Incoming(objects, 2 ** 20).message(tree.object_id));
  const wanted = first?.records.arrays.get("arrays") ?? assert.fail();
  const { arrays, figures } = await own.train(built, config, rows(), new Map());
  assertClose(arrays, wanted);
  assert.equal(figures["num-examples"], 20n);
  assert.ok(Number(figures.loss) > 0);
  assert.ok(second);
  const judged = await own.evaluate(wanted, config, rows(), new Map());
  assert.ok(Number(judged.loss) < Number(figures.loss));
  assert.ok(Number(judged.accuracy) > 0);
  await own.close();
});

test("a server that asks for clipping gets a change of this norm and the same direction", async () => {
  const own = await participant();
  const changes = async (more: [string, number][]) => {
    const { arrays } = await own.train(built, new Map([...config, ...more]), rows(), new Map());
    return [...arrays].flatMap(([name, { numbers }]) =>
      Array.from(numbers, (after, i) => after - (built.get(name)?.numbers[i] ?? Number.NaN)),
    );
  };
  const whole = await changes([]);
  const norm = Math.hypot(...whole);
  assert.ok(norm > 0.1);
  (await changes([["clipping_norm", 0.01]])).forEach((change, i) => {
    assert.ok(Math.abs(change - ((whole[i] ?? Number.NaN) * 0.01) / norm) < 1e-6);
  });
  assert.deepEqual(await changes([["clipping_norm", 1e6]]), whole);
  await assert.rejects(changes([["clipping_norm", -1]]), /clipping_norm is -1, and the owner of this client allows 0/);
  await own.close();
});

test("rounds are numbered through, and end after as many steps as the server asks for", async () => {
  const own = await participant();
  const trained = async (more: [string, bigint][]) =>
    (await own.train(built, new Map([...config, ...more]), rows(), new Map())).arrays;
  const one = await trained([["epochs", 1n]]);
  const half = await trained([
    ["epochs", 1n],
    ["steps", 1n],
  ]);
  const next = await trained([
    ["epochs", 1n],
    ["server-round", 2n],
  ]);
  assert.notDeepEqual(one, half);
  assert.notDeepEqual(one, next, "another order");
  assertClose(
    await trained([
      ["epochs", 2n],
      ["steps", 3n],
    ]),
    one,
    0,
  );
  await own.close();
});

test("what is not taken here is refused in a sentence, and the shared state stays", async () => {
  const own = await participant({ epochs: 3, norm: 40 });
  const tried = (arrays: ReadonlyMap<string, Tensor>, more: [string, string | number | bigint | boolean][] = []) =>
    own.train(arrays, new Map<string, string | number | bigint | boolean>([...config, ...more]), rows(), new Map());
  const changed = (name: string, change: (tensor: Tensor) => Tensor) =>
    new Map([...built].map(([key, tensor]) => [key, key === name ? change(tensor) : tensor]));
  const filled = (value: number) => changed("head/w", (w) => ({ ...w, numbers: w.numbers.map(() => value) }));
  await assert.rejects(
    tried(built, [["program", "f".repeat(64)]]),
    /names the program ffffffffffffffff, and this client/,
  );
  await assert.rejects(tried(built, [["epochs", 4n]]), /epochs is 4, and the owner of this client allows 1 to 3/);
  await assert.rejects(tried(built, [["epochs", 1.5]]), /epochs is 1.5, and expected is a whole number/);
  await assert.rejects(tried(built, [["epochs", true]]), /epochs is true, and expected is a whole number/);
  await assert.rejects(tried(built, [["learning-rate", Number.NaN]]), /learning-rate is NaN, and expected is a number/);
  await assert.rejects(tried(built, [["learning-rate", 2]]), /allows 0 to 1/);
  await assert.rejects(tried(built, [["seed", -1n]]), /seed is -1/);
  await assert.rejects(tried(built, [["server-round", 2n ** 60n]]), /server-round is 1152921504606846976/);
  await assert.rejects(tried(built, [["stepz", 1n]]), /the config has 'stepz', which is not known/);
  await assert.rejects(tried(built, [["proximal-mu", 0.5]]), /was built without it/);
  await assert.rejects(tried(new Map([...built, ["other", { shape: [], numbers: new Float32Array(1) }]])), /'other'/);
  await assert.rejects(tried(new Map()), /did not send head\/b and 1 others/);
  const turned = changed("head/w", (w) => ({ ...w, shape: [...w.shape].reverse() }));
  await assert.rejects(tried(turned), /head\/w came as \[3,4\], and is \[4,3\]/);
  await assert.rejects(tried(filled(Number.NaN)), /head\/w came with NaN or infinity/);
  await assert.rejects(tried(filled(20)), /have a norm of 69.3, and 40.0 is allowed here/);
  assert.equal(await own.shared(), null);
  await own.close();
  await assert.rejects(participant({ epochs: 0 }), /the bound of epochs is 0/);
});

test("a user's state stays until they take the shared one over, and that is undone", async () => {
  const own = await participant();
  const mine = await Trainer.open(program, runtime, new MemoryStore());
  for await (const _ of mine.fit(rows(), { epochs: 3, learningRate: 0.5 }));
  const before = await mine.tensors();
  const sent = new Map(
    [...built].map(([name, { shape, numbers }]) => [name, { shape, numbers: numbers.map((n) => n + 1) }]),
  );
  await own.train(sent, config, rows(), new Map());
  assert.deepEqual(await mine.tensors(), before);
  const shared = (await own.shared()) ?? assert.fail();
  assert.equal(await adopt(mine, shared, "mine"), null);
  assert.deepEqual(await mine.tensors(), before);
  const exchange = await Exchange.of(program);
  assert.equal(await adopt(mine, shared, "shared"), 2);
  assert.deepEqual(exchange.sent(await mine.tensors(), false), sent);
  await mine.rollback();
  assert.deepEqual(exchange.sent(await mine.tensors(), false), exchange.sent(before, false));
  await adopt(mine, shared, "both", (name) => name === "head/w");
  const both = exchange.sent(await mine.tensors(), false);
  assert.deepEqual(both.get("head/b"), sent.get("head/b"));
  assert.deepEqual(both.get("head/w"), exchange.sent(before, false).get("head/w"));
  await assert.rejects(adopt(mine, shared.slice(0, -1), "shared"));
  assert.deepEqual(exchange.sent(await mine.tensors(), false), both);
  await Promise.all([own.close(), mine.close()]);
});

test("a tab that was closed in the midst of a round leaves it when it is opened again", async () => {
  const [own, replay] = [await participant(), new Replay()];
  const head = (await (await fleetAt(new Replay())).pull())?.head ?? assert.fail();
  await own.note(Metadata.encode(head));
  const { errors } = await served(own, replay, { idleMillis: 50, pollMillis: 20 });
  assert.deepEqual(errors, ["left a message that was not answered when this client ended"]);
  assert.equal(replay.pushed[0]?.metadata?.reply_to_message_id, head.message_id);
  assert.match(replay.pushed[0]?.error?.reason ?? "", /leaves it/);
  assert.equal(await own.unanswered(), null);
  await own.close();
});

test("a key that the server takes for one that is there is tried again", async () => {
  const [own, replay, said] = [await participant(), new Replay(), [] as string[]];
  const refusals: Refusal[] = [
    ["activate-node", 412],
    ["register-node", 412],
    ["activate-node", 412],
  ];
  const options = { idleMillis: 50, pollMillis: 20, say: (sentence: string) => void said.push(sentence) };
  const { messages } = await served(own, replay, options, refusing(refusals));
  assert.match(said[0] ?? "", /yet: if the tab was closed/);
  assert.equal(messages, 2);
  assert.deepEqual(refusals, []);
  const never = Array.from({ length: 99 }, (): Refusal => ["activate-node", 412]);
  await assert.rejects(
    served(own, new Replay(), options, refusing(never), 1200),
    (error) => error instanceof LostServerError && /does not take this client's key: .*HTTP 412/.test(error.message),
  );
  await own.close();
});

test("a server that began anew is joined again, and one that did not is told that the client is there", async () => {
  const own = await participant();
  for (const [codes, joined] of [
    [[401, 401], 2],
    [[401], 1],
  ] as const) {
    const replay = new Replay((name, answer) => (name === "send-node-heartbeat" ? Uint8Array.of(8, 1) : answer));
    const names = ["pull-messages", "send-node-heartbeat"];
    const refusals = codes.map((code, i): Refusal => [names[i] ?? "", code]);
    const { errors, messages } = await served(own, replay, { idleMillis: 50, pollMillis: 20 }, refusing(refusals));
    assert.match(errors[0] ?? "", /does not take this client's signature/);
    assert.equal(replay.requests.filter(([name]) => name === "activate-node").length, joined);
    assert.equal(messages, 2);
  }
  await own.close();
});

test("a client answers the messages of the recorded round, and ends where there is no work", async () => {
  const [own, replay, said] = [await participant(), new Replay(), [] as string[]];
  // As `postMessage`, which is no method of anything else.
  function say(this: unknown, sentence: string): void {
    assert.equal(this, undefined);
    said.push(sentence);
  }
  const options = { idleMillis: 100, pollMillis: 30, say };
  const { messages, errors, bytes } = await served(own, replay, options);
  assert.deepEqual([messages, errors], [2, []]);
  assert.equal(
    bytes,
    [...replay.objects.values()].reduce((sum, content) => sum + content.length, 0),
  );
  assert.match(said[0] ?? "", /^train: \d+ bytes left this device$/);
  assert.equal(replay.requests.at(-1)?.[0], "deactivate-node");
  assert.equal(await own.unanswered(), null);
  const stopped = new AbortController();
  setTimeout(() => stopped.abort(), 50);
  const late = await served(own, replay, { ...options, idleMillis: 60_000, signal: stopped.signal });
  assert.equal(late.messages, 0);
  await own.close();
});
