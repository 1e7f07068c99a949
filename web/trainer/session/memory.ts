import { bytesOf } from "../bytes.ts";
import type { RuntimeTensor, TrainingRuntime } from "../engines/runtime.ts";
import { type Manifest, ofRole, product } from "../manifest/manifest.ts";
import type { Dtype, Signature } from "../manifest/manifest-records.ts";
import type { Values } from "../program/samples.ts";
import type { StoredTensor } from "../program/state-spec.ts";

/** Tensors of the runtime by name. */
export type Tensors = Map<string, RuntimeTensor>;

/** Where the state of a program lives while it trains: one class for each export. */
export interface Memory {
  /** The tensors of the state and of the accumulators that a signature takes. */
  given(signature: Signature): Tensors;
  /** Takes over those that a call gave, out of its outputs. */
  take(outputs: Tensors): void;
  /** A step has made its update: the accumulators are to be clear for the next one. */
  settle(): void;
  read(): Promise<StoredTensor[]>;
  /** Replaces all of the state, and clears the accumulators. */
  write(tensors: StoredTensor[]): Promise<void>;
}

/**
 * `variables`: the runtime keeps the state, shared by all signatures; it comes and goes through `save` and `restore`. The
 * accumulators never come out; the program clears them.
 */
export class Variables implements Memory {
  constructor(
    private readonly manifest: Manifest,
    private readonly runtime: TrainingRuntime,
  ) {}

  given(): Tensors {
    return new Map();
  }

  take(): void {}

  settle(): void {}

  async read(): Promise<StoredTensor[]> {
    const tick: Tensors = new Map([["tick", this.runtime.put({ shape: [1], dtype: "float32" }, new Float32Array(1))]]);
    try {
      const outputs = await this.runtime.run("save", tick);
      try {
        return await stored(this.manifest, outputs);
      } finally {
        freeAll(outputs);
      }
    } finally {
      freeAll(tick);
    }
  }

  async write(tensors: StoredTensor[]): Promise<void> {
    const inputs: Tensors = new Map();
    try {
      for (const tensor of tensors) inputs.set(tensor.name, this.runtime.put(tensor, valuesOf(tensor)));
      freeAll(await this.runtime.run("restore", inputs));
    } finally {
      freeAll(inputs);
    }
  }
}

/** `stateless`: the state goes in and out of every step, and stays in the runtime's memory between two. */
export class Arguments implements Memory {
  private readonly state: Tensors = new Map();
  private readonly accumulators: Tensors = new Map();

  constructor(
    private readonly manifest: Manifest,
    private readonly runtime: TrainingRuntime,
    initial: StoredTensor[],
  ) {
    this.replace(initial);
  }

  given(signature: Signature): Tensors {
    const given: Tensors = new Map();
    for (const { name, role } of signature.inputs) {
      const tensor = role === "state" ? this.state.get(name) : this.accumulators.get(name);
      if ((role === "state" || role === "gradient") && tensor) given.set(name, tensor);
    }
    return given;
  }

  take(outputs: Tensors): void {
    for (const kept of [this.state, this.accumulators]) {
      for (const name of kept.keys()) {
        const tensor = outputs.get(name);
        if (!tensor) continue;
        kept.get(name)?.free();
        kept.set(name, tensor);
        outputs.delete(name);
      }
    }
  }

  settle(): void {
    for (const spec of ofRole(this.manifest.updating.inputs, "gradient")) {
      this.accumulators.get(spec.name)?.free();
      this.accumulators.set(spec.name, this.runtime.put(spec, zeros(spec.dtype, product(spec.shape))));
    }
  }

  async read(): Promise<StoredTensor[]> {
    return await stored(this.manifest, this.state);
  }

  async write(tensors: StoredTensor[]): Promise<void> {
    this.replace(tensors);
  }

  private replace(tensors: StoredTensor[]): void {
    for (const tensor of tensors) {
      const fresh = this.runtime.put(tensor, valuesOf(tensor));
      this.state.get(tensor.name)?.free();
      this.state.set(tensor.name, fresh);
    }
    this.settle();
  }
}

export function freeAll(tensors: Tensors): void {
  for (const tensor of tensors.values()) tensor.free();
  tensors.clear();
}

const ARRAYS = {
  float32: Float32Array,
  int32: Int32Array,
  bool: Uint8Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
} as const;

/** Numbers of a type, all 0. */
export function zeros(dtype: Dtype, size: number): Values {
  return new ARRAYS[dtype](size);
}

async function stored(manifest: Manifest, tensors: Tensors): Promise<StoredTensor[]> {
  return await Promise.all(
    manifest.stateTensors.map(async ({ tensor: name, dtype, shape }) => {
      const values = await tensors.get(name)?.read();
      return { name, dtype, shape, bytes: values ? bytesOf(values) : new Uint8Array() };
    }),
  );
}

/** The numbers of a tensor; a view of a file need not be aligned. */
function valuesOf(tensor: StoredTensor): Values {
  const { buffer } = tensor.bytes.slice();
  return tensor.dtype === "int8" ? new Uint8Array(buffer) : new ARRAYS[tensor.dtype](buffer);
}
