import { type CompiledModel, type LiteRt, loadLiteRt, supportsFeature, Tensor, type TypedArray } from "@litertjs/core";
import { messageOf, RuntimeFailedError } from "../errors.ts";
import type { Dtype } from "../manifest/manifest-records.ts";
import type { Program } from "../program/program.ts";
import type { Values } from "../program/samples.ts";
import type { RuntimeFactory, RuntimeReport, RuntimeTensor, TrainingRuntime } from "./runtime.ts";

/** Where LiteRT.js comes from. */
export interface LiteRtSource {
  /** The folder with the files of `@litertjs/core/wasm`; it ends in a slash. Without it: `litert/` beside trainer.js. */
  readonly folder?: string;
  /** Gets and compiles one of these files, as from a cache; without it, it is fetched from the folder. */
  readonly compile?: (file: string) => Promise<WebAssembly.Module>;
}

/** What LiteRT.js' script looks for before it loads its WebAssembly: settings of Emscripten. */
interface Settings {
  locateFile(file: string): string;
  printErr(line: string): void;
  instantiateWasm?(imports: WebAssembly.Imports, done: (instance: WebAssembly.Instance) => void): object;
}

const NAME = "LiteRT.js 2.5.3";

let loading: Promise<LiteRt> | undefined;

/** Runs programs on stock LiteRT.js, which is loaded once a page or worker, and from now on. */
export function liteRt(source: LiteRtSource = {}): RuntimeFactory {
  const engine = begun(source);
  // Whoever opens a program learns of it.
  engine.catch(() => undefined);
  return async (program) => {
    if (!("document" in globalThis || "importScripts" in globalThis)) {
      throw new RuntimeFailedError(`${NAME} runs in pages and workers, and this is neither`);
    }
    try {
      const model = await (await engine).loadAndCompile(program.data, { accelerator: "wasm" });
      return new LiteRtRuntime(model, program, { runtime: NAME, runs: "wasm", fallback: null });
    } catch (error) {
      throw new RuntimeFailedError(`${NAME} does not take the program: ${messageOf(error)}`, { cause: error });
    }
  };
}

function begun(source: LiteRtSource): Promise<LiteRt> {
  loading ??= load(source).catch((error: unknown) => {
    // The next one may try again.
    loading = undefined;
    throw error;
  });
  return loading;
}

async function load({ folder = new URL("litert/", import.meta.url).href, compile }: LiteRtSource): Promise<LiteRt> {
  // What it logs would be errors in the console, though nothing is wrong.
  const settings: Settings = { locateFile: (file) => folder + file, printErr: (line) => console.debug(line) };
  (globalThis as { Module?: Settings }).Module = settings;
  const name = (await supportsFeature("relaxedSimd")) ? "litert_wasm_internal" : "litert_wasm_compat_internal";
  if (isModuleWorker()) await prepare(`${folder}${name}.js`);
  if (!compile) return await loadLiteRt(folder);
  const module = await compile(`${name}.wasm`);
  return await new Promise((resolve, reject) => {
    settings.instantiateWasm = (imports, done) => {
      WebAssembly.instantiate(module, imports).then(done, reject);
      return {};
    };
    loadLiteRt(folder).then(resolve, reject);
  });
}

/** Whether scripts must come as modules here: LiteRT.js takes `importScripts`, which is there and refuses. */
function isModuleWorker(): boolean {
  const { importScripts } = globalThis as { importScripts?: (...scripts: string[]) => void };
  try {
    importScripts?.();
    return false;
  } catch {
    return true;
  }
}

/** Runs LiteRT.js' script as a module, so that there is nothing left for `importScripts` to do. */
async function prepare(script: string): Promise<void> {
  const answer = await fetch(script);
  if (!answer.ok) throw new Error(`${script} cannot be read: ${answer.status}`);
  const parts = [await answer.text(), "\nglobalThis.ModuleFactory = ModuleFactory;"];
  const url = URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
  try {
    await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
  Object.assign(globalThis, { importScripts: () => undefined });
}

class LiteRtRuntime implements TrainingRuntime {
  constructor(
    private readonly model: CompiledModel,
    private readonly program: Program,
    readonly report: RuntimeReport,
  ) {}

  put(spec: { shape: number[]; dtype: Dtype }, values: Values): RuntimeTensor {
    return failing(() => new LiteRtTensor(new Tensor(values as TypedArray, spec.shape)));
  }

  async run(signature: string, inputs: Map<string, RuntimeTensor>): Promise<Map<string, RuntimeTensor>> {
    const given: Record<string, Tensor> = {};
    for (const [name, input] of inputs) if (input instanceof LiteRtTensor) given[name] = input.tensor;
    try {
      const results = await this.model.run(this.program.stored(signature), given);
      return new Map(Object.entries(results).map(([name, tensor]) => [name, new LiteRtTensor(tensor)]));
    } catch (error) {
      throw failure(error);
    }
  }

  close(): void {
    failing(() => this.model.delete());
  }
}

class LiteRtTensor implements RuntimeTensor {
  constructor(readonly tensor: Tensor) {}

  async read(): Promise<Values> {
    try {
      return (await this.tensor.data()) as Values;
    } catch (error) {
      throw failure(error);
    }
  }

  free(): void {
    failing(() => this.tensor.delete());
  }
}

function failing<T>(work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw failure(error);
  }
}

function failure(error: unknown): RuntimeFailedError {
  return new RuntimeFailedError(`${NAME} gave up: ${messageOf(error)}`);
}
