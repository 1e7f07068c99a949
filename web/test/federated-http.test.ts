import assert from "node:assert/strict";
import { createPublicKey, verify } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { Http, type SuperLink } from "../federated/http.ts";
import { derOf } from "../federated/key.ts";
import { EndedRoundError, LostServerError, NodeKey, RefusedRoundError, UnknownNodeError } from "../federated.ts";

type Handler = (request: IncomingMessage, response: ServerResponse, count: number) => void;

/** Calls a server that answers so. */
async function called(handler: Handler, options: SuperLink = {}, most = 1000, signal = new AbortController().signal) {
  let count = 0;
  const server = createServer((request, response) => handler(request.resume(), response, count++));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const http = new Http({ address, patienceMillis: 3000, ...options }, await NodeKey.generate(), most);
  try {
    return { body: await http.call("pull-messages", Uint8Array.of(1), signal), now: http.now() };
  } finally {
    server.close();
    server.closeAllConnections();
  }
}

test("a call is signed as a SuperLink checks it", async () => {
  await called((request, response) => {
    const header = (name: string) => String(request.headers[name]);
    assert.deepEqual([request.method, request.url], ["POST", "/v1/fleet/pull-messages"]);
    assert.deepEqual([header("content-type"), header("accept")], ["application/protobuf", "application/protobuf"]);
    const pem = Buffer.from(header("flwr-public-key"), "base64").toString();
    const key = createPublicKey(pem);
    assert.equal(key.export({ type: "spki", format: "pem" }), pem);
    const time = header("flwr-timestamp");
    assert.match(time, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00$/);
    assert.ok(verify("sha256", Buffer.from(time), key, Buffer.from(header("flwr-signature"), "base64")));
    response.end();
  });
});

test("signatures are DER: the fewest bytes, and none that is negative", () => {
  const raw = (r: number[], s: number[]) => {
    const bytes = new Uint8Array(96);
    bytes.set(r, 48 - r.length);
    bytes.set(s, 96 - s.length);
    return bytes;
  };
  assert.deepEqual([...derOf(raw([0x7f], [0x80]))], [0x30, 7, 2, 1, 0x7f, 2, 2, 0, 0x80]);
  assert.deepEqual([...derOf(raw([], [1, 0]))], [0x30, 7, 2, 1, 0, 2, 2, 1, 0]);
  assert.equal(derOf(new Uint8Array(96).fill(0xff)).length, 104);
});

for (const [where, ahead] of [
  ["behind", 86_400_000],
  ["ahead", -86_400_000],
] as const) {
  test(`a clock that is a day ${where} is set right by the server's answer`, async () => {
    const times: number[] = [];
    const { now } = await called((request, response, count) => {
      times.push(Date.parse(String(request.headers["flwr-timestamp"])));
      response.writeHead(count === 0 ? 401 : 200, { date: new Date(Date.now() + ahead).toUTCString() }).end();
    });
    assert.equal(times.length, 2);
    assert.ok(Math.abs((times[1] ?? 0) - (times[0] ?? 0) - ahead) < 2000);
    assert.ok(Math.abs(now * 1000 - Date.now() - ahead) < 2000);
  });
}

test("what a server answers beside 200", async () => {
  const code = (code: number) => called((_, response) => response.writeHead(code).end("run is over"));
  await assert.rejects(code(401), UnknownNodeError);
  await assert.rejects(
    code(412),
    (error) => error instanceof EndedRoundError && /HTTP 412: run is over/.test(error.message),
  );
  const bomb: Handler = (_, response) => response.writeHead(500).end("x".repeat(100_000));
  await assert.rejects(called(bomb), (error: Error) => error.message.length < 400);
});

test("an answer is read no further than its bound", async () => {
  let sent = 0;
  const endless: Handler = (_, response) => {
    const more = () => {
      while (response.write(new Uint8Array(65_536))) sent += 65_536;
    };
    response.writeHead(200).on("drain", more);
    more();
  };
  await assert.rejects(
    called(endless),
    (error) => error instanceof RefusedRoundError && /1000 bytes/.test(error.message),
  );
  assert.ok(sent < 2 ** 25, `${sent}`);
});

test("a server that is busy or goes away is asked again, for as long as the page's patience is", async () => {
  const { body } = await called((_, response, count) => response.writeHead(count === 0 ? 503 : 200).end("ok"));
  assert.equal(new TextDecoder().decode(body), "ok");
  await assert.rejects(
    called((_, response) => void response.destroy(), { patienceMillis: 100 }),
    LostServerError,
  );
  const lost = called((_, response) => void response.writeHead(503).end(), { patienceMillis: 0 });
  await assert.rejects(lost, (error) => error instanceof LostServerError && /HTTP 503/.test(error.message));
  await assert.rejects(
    called((_, response) => void response.writeHead(302, { location: "/elsewhere" }).end(), { patienceMillis: 0 }),
    LostServerError,
  );
});

test("a call ends when it is cancelled", async () => {
  const reason = new Error("the tab was hidden");
  await assert.rejects(
    called(() => undefined, {}, 1000, AbortSignal.any([AbortSignal.abort(reason)])),
    reason,
  );
  const soon = new AbortController();
  setTimeout(() => soon.abort(reason), 50);
  await assert.rejects(
    called(() => undefined, {}, 1000, soon.signal),
    reason,
  );
});

test("an address elsewhere has TLS", async () => {
  const key = await NodeKey.generate();
  assert.throws(() => new Http({ address: "http://fleet.example.org" }, key, 1), /has no TLS/);
  assert.doesNotThrow(() => new Http({ address: "http://fleet.example.org", insecure: true }, key, 1));
  assert.doesNotThrow(() => new Http({ address: "https://fleet.example.org" }, key, 1));
  const pair = await crypto.subtle.generateKey({ name: "ECDSA", namedCurve: "P-256" }, false, ["sign", "verify"]);
  await assert.rejects(NodeKey.of(pair), /expected a P-384 key/);
});
