// Runs a program on LiteRT.js. Tensors come and go as [name, element type, shape, bytes in base64].
import { loadAndCompile, loadLiteRt, Tensor } from "@litertjs/core";

const ARRAYS = { float32: Float32Array, int32: Int32Array };
let model;

const decoded = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

function encoded(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

/** Loads a program; gives whether all of it is taken, and what it runs on. */
globalThis.load = async (accelerator, program) => {
  const isGpu = accelerator === "webgpu";
  // With JSPI what WebGPU refuses runs in WebAssembly, so that it does not hide what WebGPU gets wrong.
  await loadLiteRt("/@litertjs/core/wasm/", { jspi: isGpu });
  model = await loadAndCompile(decoded(program), { accelerator, gpuOptions: { precision: "fp32" } });
  if (!isGpu) return { whole: true, device: "WebAssembly" };
  const { vendor, architecture } = (await navigator.gpu.requestAdapter()).info;
  return { whole: model.isFullyAccelerated, device: `WebGPU on ${vendor} ${architecture}` };
};

globalThis.run = async (signature, tensors) => {
  const inputs = {};
  for (const [name, type, shape, bytes] of tensors)
    inputs[name] = new Tensor(new ARRAYS[type](decoded(bytes).buffer), shape);
  const results = [];
  for (const [name, tensor] of Object.entries(await model.run(signature, inputs))) {
    const array = await (await tensor.moveTo("wasm")).data();
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    results.push([name, tensor.type.dtype, [...tensor.type.layout.dimensions], encoded(bytes)]);
  }
  for (const tensor of Object.values(inputs)) if (!tensor.deleted) tensor.delete();
  return results;
};
