import assert from "node:assert/strict";
import { test } from "node:test";
import { liteRt, type Program } from "../trainer.ts";

test("a script in Node is told that the library is for pages and workers", async () => {
  await assert.rejects(async () => liteRt()({} as Program), /runs in pages and workers, and this is neither/);
});
