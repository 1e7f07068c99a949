import { type CompiledModel, type LiteRt, loadLiteRt, supportsFeature, Tensor, type TypedArray } from "@litertjs/core";
import { messageOf, RuntimeFailedError } from "./errors.ts";
import type { Dtype } from "./manifest.ts";
import type { RuntimeFactory, RuntimeReport, RuntimeTensor, TrainingRuntime } from "./runtime.ts";
import type { Values } from "./samples.ts";

/** Where LiteRT.js comes from. */
export interface LiteRtSource {
  /** The folder with the files of `@litertjs/core/wasm`; it ends in a slash. */
  readonly folder: string;
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
export function liteRt(source: LiteRtSource): RuntimeFactory {
  const engine = begun(source);
  // Whoever opens a program learns of it.
  engine.catch(() => undefined);
  return async (program) => {
    try {
      const model = await (await engine).loadAndCompile(program.data, { accelerator: "wasm" });
      return new LiteRtRuntime(model, { runtime: NAME, runs: "wasm", fallback: null });
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

async function load({ folder, compile }: LiteRtSource): Promise<LiteRt> {
  // What it logs would be errors in the console, though nothing is wrong.
  const settings: Settings = { locateFile: (file) => folder + file, printErr: (line) => console.debug(line) };
  (globalThis as { Module?: Settings }).Module = settings;
  if (!compile) return await loadLiteRt(folder);
  const isNew = await supportsFeature("relaxedSimd");
  const module = await compile(isNew ? "litert_wasm_internal.wasm" : "litert_wasm_compat_internal.wasm");
  return await new Promise((resolve, reject) => {
    settings.instantiateWasm = (imports, done) => {
      WebAssembly.instantiate(module, imports).then(done, reject);
      return {};
    };
    loadLiteRt(folder).then(resolve, reject);
  });
}

class LiteRtRuntime implements TrainingRuntime {
  constructor(
    private readonly model: CompiledModel,
    readonly report: RuntimeReport,
  ) {}

  put(spec: { shape: number[]; dtype: Dtype }, values: Values): RuntimeTensor {
    return failing(() => new LiteRtTensor(new Tensor(values as TypedArray, spec.shape)));
  }

  async run(signature: string, inputs: Map<string, RuntimeTensor>): Promise<Map<string, RuntimeTensor>> {
    const given: Record<string, Tensor> = {};
    for (const [name, input] of inputs) if (input instanceof LiteRtTensor) given[name] = input.tensor;
    try {
      const results = await this.model.run(signature, given);
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
