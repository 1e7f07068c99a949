// What llama.cpp computes, by node-llama-cpp: log probabilities of the token after each of some.
//
// node llama_cpp.mjs FOLDER, with a folder that has node_modules; requests are lines of JSON on stdin,
// {"model": "net.gguf", "adapter": "adapter.gguf" or null, "ids": [...]}; answers are lines [[...], ...], or {"error": "..."}.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const place = join(process.argv[2], "node_modules/node-llama-cpp/dist/index.js");
const { getLlama } = await import(pathToFileURL(place));
const llama = await getLlama({ gpu: false, build: "never", logLevel: "error" });

for await (const line of createInterface({ input: process.stdin })) {
  const { model: modelPath, adapter, ids } = JSON.parse(line);
  try {
    const model = await llama.loadModel({ modelPath, useMmap: false });
    const context = await model.createContext({
      contextSize: 64,
      flashAttention: false,
      experimentalKvCacheKeyType: "F32",
      experimentalKvCacheValueType: "F32",
      ...(adapter === null ? {} : { lora: adapter }),
    });
    const sequence = context.getSequence();
    const said = await sequence.controlledEvaluate(ids.map((id) => [id, { generateNext: { probabilities: true } }]));
    const rows = said.map(({ next }) => {
      const row = Array(next.probabilities.size);
      for (const [token, probability] of next.probabilities) row[token] = Math.log(probability);
      return row;
    });
    console.log(JSON.stringify(rows));
    await context.dispose();
    await model.dispose();
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
process.exit(0);
