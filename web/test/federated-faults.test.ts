import assert from "node:assert/strict";
import { test } from "node:test";
import { Fleet } from "../federated/fleet.ts";
import { Incoming } from "../federated/incoming.ts";
import { type Metadata, PullMessagesResponse, PushObjectResponse } from "../federated/messages.ts";
import { idOf, Outgoing } from "../federated/objects.ts";
import { LostServerError, NodeKey, Participant, UnknownNodeError } from "../federated.ts";
import { type Bytes, MemoryStore, Program } from "../trainer.ts";
import { inNode } from "./litert.ts";
import { assertClose, file, Replay } from "./recorded.ts";
import { type Refusal, refusing, served } from "./served.ts";

const program = await Program.open(file("program.tflite"));
const runtime = inNode();
const options = { idleMillis: 500, pollMillis: 20 };
/** What a round calls; a sign of life comes later. */
const CALLS = [
  "activate-node",
  "pull-messages",
  "pull-object",
  "confirm-message-received",
  "push-messages",
  "push-object",
];

async function participant(): Promise<Participant> {
  return await Participant.open(program, runtime, new MemoryStore());
}

function gone(): never {
  throw new TypeError("fetch failed");
}

/** The answer to a pull with another head. */
function headed(answer: Bytes, change: Partial<Metadata>): Bytes {
  const pulled = PullMessagesResponse.decode(answer);
  const messages = pulled.messages_list.map((message) => ({
    ...message,
    metadata: message.metadata && { ...message.metadata, ...change },
  }));
  return PullMessagesResponse.encode({ ...pulled, messages_list: messages });
}

/** The trained arrays that a replay was answered. */
function arraysIn(replay: Replay) {
  const [reply] = replay.pushed.filter(({ metadata }) => metadata?.message_type === "train");
  const { records } = new Incoming(replay.objects, 2 ** 20).message(reply?.metadata?.message_id ?? assert.fail());
  return records.arrays.get("arrays") ?? assert.fail();
}

test("a server that is gone for a moment in every call is asked again, and the rounds go on", async () => {
  const [own, replay, left] = [await participant(), new Replay(), new Set(CALLS)];
  const { messages, errors } = await served(own, replay, options, (name) => (left.delete(name) ? gone() : undefined));
  assert.deepEqual([messages, errors, [...left]], [2, [], []]);
  await own.close();
});

test("a server that is gone for good in a call ends the client with a sentence, and what was taken is left later", async () => {
  for (const call of CALLS) {
    const own = await participant();
    const lost = served(own, new Replay(), options, (name) => (name === call ? gone() : undefined), 0);
    await assert.rejects(
      lost,
      (error) => error instanceof LostServerError && /^no SuperLink answers at .*: fetch failed$/.test(error.message),
      call,
    );
    const isTaken = call !== "activate-node" && call !== "pull-messages";
    assert.equal((await own.unanswered()) !== null, isTaken, call);
    const again = new Replay();
    const { errors } = await served(own, again, options);
    assert.deepEqual(errors, isTaken ? ["left a message that was not answered when this client ended"] : [], call);
    await own.close();
  }
});

test("a server that is gone when the client says that it is there, or leaves, is no error", async () => {
  const own = await participant();
  const { messages } = await served(
    own,
    new Replay(),
    options,
    (name) => (name === "deactivate-node" ? gone() : undefined),
    0,
  );
  assert.equal(messages, 2);
  const call = async () => Promise.reject(new LostServerError("it is gone"));
  const fleet = new Fleet(await NodeKey.generate(), 1, () => 0, call, new AbortController().signal);
  await fleet.beat();
  await fleet.leave(call);
  await own.close();
});

test("an answer that comes late ends in a sentence, and the next message is answered", async () => {
  const own = await participant();
  const late: [string, RegExp, (replay: Replay) => Promise<{ messages: number; errors: readonly string[] }>][] = [
    [
      "push-messages",
      /push-messages: the server answers HTTP 412: no/,
      (replay) => served(own, replay, options, refusing([["push-messages", 412]])),
    ],
    [
      "push-object",
      /push-object: the server answers HTTP 403: no/,
      (replay) => served(own, replay, options, refusing([["push-object", 403]])),
    ],
  ];
  for (const [call, said, act] of late) {
    const { messages, errors } = await act(new Replay());
    assert.deepEqual([messages, errors.length], [1, 1], call);
    assert.match(errors[0] ?? "", said);
    assert.equal(await own.unanswered(), null);
  }
  let refused = false;
  const over = new Replay((name, answer) => {
    if (name !== "push-object" || refused) return answer;
    refused = true;
    return PushObjectResponse.encode({ stored: false });
  });
  const { messages, errors } = await served(own, over, options);
  assert.deepEqual([messages, errors], [1, ["the server does not take the answer: the session of its upload is over"]]);
  const empty = new Replay((name, answer) => (name === "pull-object" ? new Uint8Array() : answer));
  assert.match((await served(own, empty, options)).errors[0] ?? "", /^object \w{16} of the server is not there$/);
  assert.deepEqual(empty.pushed, []);
  await own.close();
});

test("a message that comes twice is done once", async () => {
  const [own, replay] = [await participant(), new Replay()];
  const [first = assert.fail(), second = assert.fail()] = replay.waiting;
  replay.waiting.splice(0, 2, first, first, second, first, second);
  const { messages, errors } = await served(own, replay, options);
  assert.equal(messages, 2);
  assert.deepEqual(errors, Array(3).fill("the server sent a message again that was answered: it is left out"));
  assert.equal(replay.pushed.length, 2);
  assert.equal(await own.unanswered(), null);
  await own.close();
});

test("a message of another node, or that is not its envelope's, is not done", async () => {
  const own = await participant();
  const changed = (change: Partial<Metadata>) =>
    new Replay((name, answer) => (name === "pull-messages" ? headed(answer, change) : answer));
  const foreign = changed({ dst_node_id: 5n });
  const { messages, errors } = await served(own, foreign, options);
  assert.deepEqual([messages, errors], [0, Array(2).fill("the server's message is for another node")]);
  assert.deepEqual(foreign.pushed, [], "nobody would take an answer in that node's name");
  for (const change of [
    { run_id: 1n },
    { src_node_id: 3n },
    { message_type: "query" },
    { reply_to_message_id: "x" },
    { group_id: "2" },
  ]) {
    const replay = changed(change);
    const said = "the server's message is not what its envelope says";
    assert.deepEqual((await served(own, replay, options)).errors, [said, said]);
    assert.equal(replay.pushed[0]?.error?.reason, said);
  }
  await own.close();
});

test("messages in another order are answered as in their own", async () => {
  const own = await participant();
  const [straight, reversed] = [new Replay(), new Replay()];
  reversed.waiting.reverse();
  for (const replay of [straight, reversed]) assert.deepEqual((await served(own, replay, options)).errors, []);
  assert.deepEqual(
    reversed.pushed.map(({ metadata }) => metadata?.message_type),
    ["evaluate", "train"],
  );
  assertClose(arraysIn(reversed), arraysIn(straight), 0);
  await own.close();
});

test("objects that say they have a gigabyte end the round, and no memory is taken for them", async () => {
  const own = await participant();
  const claims = Uint8Array.of(0x08, 1, 0x10, 1, 0x1a, 0x80, 0x80, 0x80, 0x80, 4); // an object of 2 ** 30 bytes, cut short
  const replay = new Replay((name, answer) => (name === "pull-object" ? claims : answer));
  assert.match((await served(own, replay, options)).errors[0] ?? "", /does not answer as a SuperLink does/);
  const gigabyte = 2 ** 30;
  const body = () =>
    new ReadableStream({ pull: (controller) => controller.enqueue(new Uint8Array(2 ** 20)) }, { highWaterMark: 0 });
  const before = process.memoryUsage.rss();
  const { errors } = await served(own, new Replay(), options, (name) =>
    name === "pull-object" ? new Response(body(), { headers: { "content-length": `${gigabyte}` } }) : undefined,
  );
  assert.match(errors[0] ?? "", /^an answer of the server is larger than \d+ bytes$/);
  assert.ok(process.memoryUsage.rss() - before < gigabyte / 8);
  await own.close();
});

test("an array of many small objects that is a gigabyte when it is put together is refused", async () => {
  const chunk = await Outgoing.of("ArrayChunk", new Uint8Array(2 ** 20));
  const head = { dtype: "float32", shape: [2 ** 28], stype: "numpy.ndarray", arraychunk_ids: Array(1024).fill(0) };
  const utf8 = (value: unknown) => new TextEncoder().encode(JSON.stringify(value));
  const array = await Outgoing.of("Array", utf8(head), [chunk]);
  const record = await Outgoing.of("ArrayRecord", utf8({ w: array.id }), [array]);
  const dict = await Outgoing.of("RecordDict", utf8({ arrays: record.id }), [record]);
  const message = await Outgoing.of("Message", new Uint8Array(), [dict]);
  const contents = new Map(message.all().map(({ id, content }) => [id, content]));
  assert.equal(await idOf(contents.get(chunk.id) ?? assert.fail()), chunk.id);
  assert.throws(() => new Incoming(contents, 2 ** 22).message(message.id), /its arrays are larger than 4194304 bytes/);
});

test("a key that the server takes no longer ends the client with a sentence", async () => {
  const own = await participant();
  const refusals: Refusal[] = [
    ["pull-messages", 401],
    ["send-node-heartbeat", 401],
    ["activate-node", 401],
  ];
  await assert.rejects(
    served(own, new Replay(), options, refusing(refusals)),
    (error) =>
      error instanceof UnknownNodeError || (error instanceof LostServerError && /signature/.test(error.message)),
  );
  await own.close();
});

test("no signature is sent twice, also where a call is tried again: a leaf takes each once", async () => {
  const [own, seen, left] = [await participant(), new Set<string>(), new Set(["pull-object", "push-object"])];
  const { messages, errors } = await served(own, new Replay(), options, (name, headers) => {
    const signature = headers.get("flwr-signature") ?? assert.fail();
    if (seen.has(signature)) return new Response("the signature was here before", { status: 401 });
    seen.add(signature);
    return left.delete(name) ? gone() : undefined;
  });
  assert.deepEqual([messages, errors], [2, []]);
  assert.ok(seen.size > 20);
  await own.close();
});
