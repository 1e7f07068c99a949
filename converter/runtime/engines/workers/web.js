// Runs a program on LiteRT.js. Its bytes and those of inputs are sent beforehand; results are [name, element type, shape,
// bytes in base64].
import { loadAndCompile, loadLiteRt, Tensor } from "@litertjs/core";

const ARRAYS = { float32: Float32Array, int32: Int32Array };
let model;

/** What was sent for the next call, by name. */
let sent = new Map();

/** Takes a piece of something, in base64. */
globalThis.take = (name, size, at, piece) => {
  if (at === 0) sent.set(name, new Uint8Array(size));
  const text = atob(piece);
  const bytes = sent.get(name);
  for (let i = 0; i < text.length; i++) bytes[at + i] = text.charCodeAt(i);
};

function encoded(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

/** Loads the program that was sent; gives whether all of it is taken, and what it runs on. */
globalThis.load = async (accelerator) => {
  const isGpu = accelerator === "webgpu";
  // With JSPI what WebGPU refuses runs in WebAssembly, so that it does not hide what WebGPU gets wrong.
  await loadLiteRt("/@litertjs/core/wasm/", { jspi: isGpu });
  model = await loadAndCompile(sent.get("program"), { accelerator, gpuOptions: { precision: "fp32" } });
  sent = new Map();
  if (!isGpu) return { whole: true, device: "WebAssembly" };
  const { vendor, architecture } = (await navigator.gpu.requestAdapter()).info;
  return { whole: model.isFullyAccelerated, device: `WebGPU on ${vendor} ${architecture}` };
};

/** Runs a signature on inputs that were sent: [name, element type, shape]. */
globalThis.run = async (signature, tensors) => {
  const inputs = {};
  for (const [name, type, shape] of tensors)
    inputs[name] = new Tensor(new ARRAYS[type](sent.get(name).buffer), shape);
  sent = new Map();
  const results = [];
  for (const [name, tensor] of Object.entries(await model.run(signature, inputs))) {
    const array = await (await tensor.moveTo("wasm")).data();
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    results.push([name, tensor.type.dtype, [...tensor.type.layout.dimensions], encoded(bytes)]);
  }
  for (const tensor of Object.values(inputs)) if (!tensor.deleted) tensor.delete();
  return results;
};
