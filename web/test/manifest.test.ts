import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { readManifest } from "../trainer/manifest/manifest-checks.ts";
import { ProgramError } from "../trainer.ts";

/** Manifests, and by the name of a bad one a part of what its refusal says; the readers of all languages are held to them. */
const VECTORS = "../tests/manifest";
const PLACES: Record<string, string> = JSON.parse(readFileSync(`${VECTORS}/places.json`, "utf8"));

function vectors(folder: "bad" | "good"): [string, Uint8Array][] {
  const files = readdirSync(`${VECTORS}/${folder}`).sort();
  return files.map((file) => [file.replace(".json", ""), new Uint8Array(readFileSync(`${VECTORS}/${folder}/${file}`))]);
}

for (const [name, bytes] of vectors("good")) {
  test(`a good manifest is read: ${name}`, () => {
    assert.ok(readManifest(bytes).stateTensors.length > 0);
  });
}

for (const [name, bytes] of vectors("bad")) {
  test(`a bad manifest is refused: ${name}`, () => {
    assert.throws(
      () => readManifest(bytes),
      (error) => error instanceof ProgramError && error.message.includes(PLACES[name] ?? "nothing said"),
    );
  });
}

test("there are vectors, and every bad one has a place", () => {
  assert.ok(vectors("bad").length >= 60 && vectors("good").length >= 15);
  assert.deepEqual(
    vectors("bad")
      .map(([name]) => name)
      .sort(),
    Object.keys(PLACES).sort(),
  );
});
