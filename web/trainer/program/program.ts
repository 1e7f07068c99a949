import type { Bytes } from "../bytes.ts";
import { DamagedProgramError } from "../errors.ts";
import { byteSize, type Manifest, product } from "../manifest/manifest.ts";
import { readManifest } from "../manifest/manifest-checks.ts";
import { ELEMENT_BYTES, type StateTensor } from "../manifest/manifest-records.ts";
import { places } from "../manifest/view.ts";
import { RedrawnChannels } from "../state/redrawn.ts";
import { piecesOf } from "./assembly.ts";
import { verifyChecksum } from "./checksum.ts";
import { metadataOf, ofSignature } from "./heads.ts";
import { realTensors } from "./integers.ts";
import { damagedAssembly } from "./known.ts";
import { ModelMetadata } from "./model-metadata.ts";
import type { StoredTensor } from "./state-spec.ts";

const MANIFEST = "pocketune.manifest";
const INITIAL = "pocketune.initial/";
const FROZEN = "pocketune.frozen/";
const INFERENCE = "pocketune.inference";

/** A checked training program. */
export class Program {
  private constructor(
    /** The `.tflite`: the very bytes that were checked. Do not write into them. */
    readonly data: Bytes,
    private readonly model: ModelMetadata,
    private readonly metadata: Map<string, Bytes>,
    /** What it says about itself. */
    readonly manifest: Manifest,
    /** Which of the heads of a file of several; undefined of a file of one. */
    readonly head: string | undefined,
  ) {}

  /**
   * Opens the bytes of a `.tflite` (copied), or one of the heads of a file of several. Throws ProgramError: not one bit of
   * it may differ from what was built.
   */
  static async open(bytes: ArrayBuffer | Uint8Array, head?: string): Promise<Program> {
    const data = new Uint8Array(bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes));
    await verifyChecksum(data);
    const model = new ModelMetadata(data);
    const metadata = metadataOf(model.entries(INITIAL, FROZEN, INFERENCE), head);
    const entry = metadata.get(MANIFEST);
    if (!entry) throw new DamagedProgramError("it is no Pocketune program: it has no manifest");
    const manifest = readManifest(entry);
    checkTrains(manifest);
    for (const tensor of manifest.stateTensors) {
      const stored = metadata.get(INITIAL + tensor.tensor)?.length;
      if (stored !== byteSize(tensor) && stored !== ELEMENT_BYTES[tensor.dtype]) {
        throw new DamagedProgramError(`its entry '${INITIAL}${tensor.tensor}' is missing or of another size`);
      }
    }
    return new Program(data, model, metadata, manifest, head);
  }

  /** What a signature of the manifest is called in the file. */
  stored(signature: string): string {
    return ofSignature(signature, this.head);
  }

  /** The state as built. */
  initialState(): StoredTensor[] {
    return this.manifest.stateTensors.map((tensor) => ({
      name: tensor.tensor,
      dtype: tensor.dtype,
      shape: tensor.shape,
      bytes: this.initial(tensor),
    }));
  }

  /** The plain model with the weights of a state, in pieces that follow one another in its file. */
  async plainModel(state: StoredTensor[]): Promise<Uint8Array[]> {
    const entry = this.metadata.get(INFERENCE);
    if (!entry) throw new DamagedProgramError("it does not say how its plain model is put together: build it again");
    const merged = new RedrawnChannels(this).folded(state);
    const tensors = realTensors(this.manifest, new Map(merged.map((tensor) => [tensor.name, tensor.bytes])));
    return await piecesOf(entry, this.data.length, {
      buffer: (number) => this.model.buffer(number),
      state: tensors,
      weight: (name) => this.weight(name, tensors),
    });
  }

  /** A weight that trained, in the model's own layout and full shape; undefined for one that did not. */
  private weight(name: string, state: Map<string, Bytes>): Bytes | undefined {
    const spec = this.manifest.fields.parameters.find((parameter) => parameter.name === name);
    if (!spec) return undefined;
    const size = ELEMENT_BYTES[spec.dtype];
    const whole = new Uint8Array(size * product(spec.shape));
    const parts = spec.pieces.map(({ view, tensor }) => ({ view, bytes: state.get(tensor) }));
    if (spec.frozen) parts.unshift({ view: spec.frozen.view, bytes: this.metadata.get(spec.frozen.entry) });
    for (const { view, bytes } of parts) {
      const at = places({ name, shape: spec.shape, view });
      // One element stands for a part of equal ones.
      const step = bytes?.length === size ? 0 : size;
      if (!bytes || bytes.length < step * (at.length - 1) + size) damagedAssembly(`${name} has ${bytes?.length} bytes`);
      at.forEach((place, i) => {
        whole.set(bytes.subarray(i * step, i * step + size), place * size);
      });
    }
    return whole;
  }

  /** The built value of a state tensor; in the file one element stands for a tensor of equal ones. */
  initial(tensor: StateTensor): Bytes {
    const stored = this.metadata.get(INITIAL + tensor.tensor) ?? new Uint8Array();
    const whole = new Uint8Array(byteSize(tensor));
    for (let at = 0; at < whole.length; at += stored.length) whole.set(stored, at);
    return whole;
  }
}

/** Throws DamagedProgramError for a good program that is not for a browser. */
function checkTrains(manifest: Manifest): void {
  const build = 'build it with target="web" and signatures=("train", "infer", ...)';
  if (manifest.fields.state === "split") fail(`its state is "split", and a browser takes the others: ${build}`);
  if (!manifest.find("infer")) fail(`it has no signature "infer", and a trainer shows what was learned: ${build}`);
}

function fail(problem: string): never {
  throw new DamagedProgramError(problem);
}
