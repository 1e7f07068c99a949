import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname } from "node:path";
import { compileFunction } from "node:vm";
import { liteRt, type RuntimeFactory } from "../trainer.ts";

const FOLDER = `${process.cwd()}/node_modules/@litertjs/core/wasm/`;

/** Stock LiteRT.js, the very files that the page has, in Node: its script finds what it looks for in a worker. */
export function inNode(): RuntimeFactory {
  Object.assign(globalThis, { self: globalThis, importScripts });
  return liteRt({ folder: FOLDER });
}

function importScripts(script?: string): void {
  if (script === undefined) return;
  const names = ["require", "__dirname", "__filename"];
  const factory = compileFunction(`${readFileSync(script, "utf8")}; return ModuleFactory;`, names);
  Object.assign(globalThis, { ModuleFactory: factory(createRequire(script), dirname(script), script) });
}
