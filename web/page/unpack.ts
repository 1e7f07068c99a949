import { messageOf } from "../trainer.ts";
import { Failure } from "./protocol.ts";

/**
 * LiteRT.js' WebAssembly, which the build has compressed: a third of its size whatever the server does. It is compiled
 * while it comes in.
 */
export async function compileLiteRt(file: string): Promise<WebAssembly.Module> {
  let packed: Response;
  try {
    packed = await fetch(`litert/${file}.bin`);
  } catch (error) {
    throw new Failure("offline", messageOf(error));
  }
  if (!packed.ok || !packed.body) throw new Failure("offline", `${file} cannot be read: ${packed.status}`);
  const stream = packed.body.pipeThrough(new DecompressionStream("gzip"));
  return await WebAssembly.compileStreaming(new Response(stream, { headers: { "Content-Type": "application/wasm" } }));
}
