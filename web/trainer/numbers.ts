import type { Values } from "./samples.ts";

/** By how much a probability may miss its bounds: what rounding does. */
const SLACK = 1e-6;

interface Taken {
  words: string;
  fits: (number: number) => boolean;
}

const PROBABILITIES: Taken = { words: "numbers from 0 to 1", fits: (n) => n >= -SLACK && n <= 1 + SLACK };
const SHARES: Taken = { words: "numbers from 0 on, one a class", fits: (n) => n >= -SLACK };
const AMOUNTS: Taken = { words: "numbers from 0 on", fits: (n) => n >= -SLACK };
const SIGNS: Taken = { words: "-1 or 1 (for labels that are 0 or 1 pass 2 * y - 1)", fits: (n) => Math.abs(n) === 1 };

/** The numbers that a loss takes, as the host has it (converter/runtime/targets.py); others take any. */
const TAKEN = new Map([
  ["binary_crossentropy", PROBABILITIES],
  ["binary_focal_crossentropy", PROBABILITIES],
  ["categorical_crossentropy", SHARES],
  ["categorical_focal_crossentropy", SHARES],
  ["categorical_hinge", PROBABILITIES],
  ["dice", PROBABILITIES],
  ["hinge", SIGNS],
  ["msle", AMOUNTS],
  ["poisson", AMOUNTS],
  ["squared_hinge", SIGNS],
  ["tversky", PROBABILITIES],
]);

/** What is wrong with a target, in words; undefined when nothing is. */
export function problemOfNumbers(loss: string, target: Values): string | undefined {
  const taken = TAKEN.get(loss);
  if (!taken || target instanceof Uint8Array) return undefined;
  const bad = target.find((number) => !taken.fits(number));
  return bad === undefined ? undefined : `${loss} takes ${taken.words}, and this holds ${bad}`;
}
