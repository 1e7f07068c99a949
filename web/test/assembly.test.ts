import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { piecesOf } from "../trainer/program/assembly.ts";
import { DamagedProgramError } from "../trainer.ts";

/** What a plain model is made of is bounded by what is stored; litert.test.ts has what is made. */
const NBYTES = 1 << 16;
const SHAPE = [NBYTES / 4];
const stored = { source: "state", name: "w", shape: SHAPE };
const product = (of: number, shape = SHAPE) => ({ source: "multiply", shape, operands: [of, 0] });
/** Numbers of all kinds that float16 has: zeros, the smallest, the largest, without end. */
const halved = new Uint8Array(
  Float32Array.of(0, -0, 1, -0.333251953125, 65504, 2 ** -24, -(2 ** -14), Infinity).buffer,
);
const part = (number: number) => ({ source: "known", nbytes: NBYTES, number });

async function pieces(known: object[], parts: object[]): Promise<Uint8Array[]> {
  const entry = new Uint8Array(deflateSync(`${JSON.stringify({ parts, known })}\n`));
  return await piecesOf(entry, 1000, {
    buffer: () => halved,
    state: new Map([["w", new Uint8Array(NBYTES)]]),
    weight: () => undefined,
  });
}

async function refused(message: string, known: object[], parts: object[]): Promise<void> {
  const expected = (error: Error) => error instanceof DamagedProgramError && error.message.includes(message);
  await assert.rejects(pieces(known, parts), expected);
}

test("honest lists are taken", async () => {
  const made = await pieces([stored, product(0)], [part(1)]);
  assert.deepEqual(
    made.map((piece) => piece.length),
    [NBYTES],
  );
});

test("more than four times what is stored is refused", async () => {
  const products = Array.from({ length: 20_000 }, (_, i) => product(i));
  await refused(`bytes or more, of at most ${4 * (1000 + NBYTES)}`, [stored, ...products], [part(20_000)]);
  await refused("parts are", [stored, product(0)], Array(5).fill(part(1)));
});

test("what nobody reads is refused", async () => {
  await refused("nobody reads", [stored, product(0), product(0)], [part(1)]);
});

test("many axes are refused", async () => {
  const deep = [...Array(100_000).fill(1), ...SHAPE];
  await refused("axes", [{ ...stored, shape: deep }, product(0, deep)], [part(1)]);
});

test("float32 numbers are given as float16 where that holds them", async () => {
  const [made] = await pieces([], [{ source: "half", nbytes: 16 }]);
  const bits = new Uint16Array((made as Uint8Array).slice().buffer);
  assert.deepEqual([...bits], [0, 0x8000, 0x3c00, 0xb555, 0x7bff, 1, 0x8400, 0x7c00]);
  const good = halved.slice();
  halved.set(new Uint8Array(Float32Array.of(0.1).buffer));
  await refused("no float16", [], [{ source: "half", nbytes: 16 }]);
  halved.set(good);
});
