import type { Bytes } from "../trainer/bytes.ts";
import type { Random } from "../trainer/session/random.ts";

const ODD = [0, 1, 0x7f, 0x80, 0xff];
const TOKENS = [
  ..."null true -1 0 1e999 99999999999999999999 2147483647 NaN 3.5 [] {} [[[[ , : ] }".split(" "),
  '"',
  "\\u0000",
];

/** Some bytes overwritten, half of them among the first, where a file's structure is; sometimes cut. */
export function mutated(bytes: Bytes, random: Random, structural: number): Bytes {
  const bad = random.nextInt(8) === 0 ? bytes.slice(0, random.nextInt(bytes.length)) : bytes.slice();
  for (let i = random.nextInt(8); i >= 0 && bad.length > 0; i--) {
    const region = random.nextInt(2) === 0 ? Math.min(bad.length, structural * 16) : bad.length;
    bad[random.nextInt(region)] = ODD[random.nextInt(ODD.length + 1)] ?? random.nextInt(256);
  }
  return bad;
}

/** Bytes replaced, pieces doubled, cut or swapped for what JSON is made of. */
export function mutatedText(bytes: Bytes, random: Random): Bytes {
  let text = Buffer.from(bytes).toString("latin1");
  for (let i = random.nextInt(3); i >= 0; i--) {
    const at = random.nextInt(text.length + 1);
    const [before, piece, after] = [text.slice(0, at), text.slice(at, at + random.nextInt(12)), text.slice(at)];
    const rest = after.slice(piece.length);
    const forms = [before + rest, before + TOKENS[random.nextInt(TOKENS.length)] + rest, before + piece + after];
    text = forms[random.nextInt(4)] ?? before + String.fromCharCode(random.nextInt(256)) + after.slice(1);
  }
  return new Uint8Array(Buffer.from(text, "latin1"));
}
