import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, normalize } from "node:path/posix";
import { test } from "node:test";

/** What each file of the library imports of the others, types included. */
function imports(): Map<string, string[]> {
  const files = readdirSync("trainer", { recursive: true, encoding: "utf8" }).filter((file) => file.endsWith(".ts"));
  return new Map(
    files.map((file) => {
      const found = readFileSync(`trainer/${file}`, "utf8").matchAll(/ from "(\..*)";/g);
      return [file, [...found].map(([, name]) => normalize(`${dirname(file)}/${name}`))];
    }),
  );
}

/** Files that import one another in a circle; those that import nothing of what is left are taken away again and again. */
function circle(graph: Map<string, string[]>): string[] {
  const left = new Map(graph);
  for (let before = -1; before !== left.size; ) {
    before = left.size;
    for (const [file, others] of [...left]) if (!others.some((other) => left.has(other))) left.delete(file);
  }
  return [...left.keys()];
}

test("nothing imports in a circle", () => {
  const graph = imports();
  const file = "state/state-file.ts";
  assert.ok(graph.get(file)?.includes("bytes.ts"));
  assert.deepEqual(circle(graph), []);
  assert.ok(circle(new Map([...graph, ["bytes.ts", [file]]])).includes(file));
});
