import { areEqual, type Bytes, isFinite32, isZero, sha256, toHex, utf8 } from "./bytes.ts";
import {
  DamagedStateError,
  DivergedError,
  ForeignStateError,
  InputError,
  messageOf,
  StateVersionError,
} from "./errors.ts";
import { ELEMENT_BYTES, type Manifest, product, type StoredDtype, storedDtype } from "./manifest.ts";
import { type Decoded, decode, integer, list, record, string } from "./strict-json.ts";

const MAGIC = utf8("PTSTATE\n");
const VERSION = 1;
const FORMAT = "pocketune-state/1";
const ALIGNMENT = 64;
const FIXED = 16;
const BODY = FIXED + 32;
const MAX_HEADER = 4 << 20;
const MAX_BYTES = 2 ** 31 - 1;

/** One tensor of a state: little-endian numbers. */
export interface StoredTensor {
  readonly name: string;
  readonly dtype: StoredDtype;
  readonly shape: number[];
  readonly bytes: Bytes;
}

/** A state in a file; `program` is the graph hash of the program it belongs to. */
export interface State {
  readonly program: string;
  readonly generation: number;
  readonly tensors: StoredTensor[];
}

const header = record({
  format: string,
  program: string,
  generation: integer,
  tensors: list(
    record({
      name: string,
      dtype: storedDtype,
      shape: list(integer),
      offset: integer,
      nbytes: integer,
      sha256: string,
    }),
  ),
});

type Entry = Decoded<typeof header>["tensors"][number];

/** Whether a tensor holds neither NaN nor infinity. */
export function isFiniteTensor(tensor: StoredTensor): boolean {
  return tensor.dtype !== "float32" || isFinite32(tensor.bytes);
}

/** Whether tensors are those of this program, in its order, and name channels that its weights have. */
export function isStateOf(manifest: Manifest, tensors: StoredTensor[]): boolean {
  const { stateTensors, choices } = manifest;
  const isAll =
    stateTensors.length === tensors.length &&
    stateTensors.every((expected, i) => {
      const tensor = tensors[i];
      return (
        tensor?.name === expected.tensor &&
        tensor.dtype === expected.dtype &&
        tensor.shape.join() === expected.shape.join()
      );
    });
  return (
    isAll &&
    choices.every((choice) => {
      const bytes = tensors.find((tensor) => tensor.name === choice.indices)?.bytes.slice();
      const indices = bytes ? [...new Int32Array(bytes.buffer)] : [];
      return new Set(indices).size === indices.length && indices.every((i) => i >= 0 && i < choice.channels);
    })
  );
}

/** How many bytes a file of a state of this program takes at most. */
export function largestFile(manifest: Manifest): number {
  return BODY + MAX_HEADER + ALIGNMENT * (manifest.stateTensors.length + 1) + manifest.stateBytes;
}

/** The bytes of a state file. Throws DivergedError: a tensor holds NaN or infinity; such a state is never written. */
export async function pack(state: State): Promise<Bytes> {
  let end = 0;
  const entries: Entry[] = [];
  for (const tensor of state.tensors) {
    if (!isFiniteTensor(tensor))
      throw new DivergedError(`the state is not saved: ${tensor.name} holds NaN or infinity`);
    const { name, dtype, shape, bytes } = tensor;
    const offset = aligned(end);
    end = offset + bytes.length;
    entries.push({ name, dtype, shape, offset, nbytes: bytes.length, sha256: toHex(await sha256(bytes)) });
  }
  const { program, generation } = state;
  const text = utf8(JSON.stringify({ format: FORMAT, program, generation, tensors: entries }));
  const start = aligned(BODY + text.length);
  if (text.length > MAX_HEADER || start + end > MAX_BYTES) throw new InputError("the state is too large to save");
  const file = new Uint8Array(start + end);
  file.set(MAGIC);
  const view = new DataView(file.buffer);
  view.setUint32(8, VERSION, true);
  view.setUint32(12, text.length, true);
  file.set(text, BODY);
  file.set(await digest(file, text.length), FIXED);
  for (const [i, entry] of entries.entries()) file.set(state.tensors[i]?.bytes ?? [], start + entry.offset);
  return file;
}

/**
 * The state in the bytes of a file, as views of them; `program` is the graph hash that it shall have. Throws
 * DamagedStateError: a byte is missing, added or altered; StateVersionError: of another version of the format;
 * ForeignStateError: of another program, its tensors were not looked at.
 */
export async function unpack(file: Bytes, program: string): Promise<State> {
  if (!startsLikeOne(file) || file.length < BODY) damaged("it is no state file, or cut short");
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = view.getUint32(12, true);
  if (length > Math.min(MAX_HEADER, file.length - BODY)) damaged("its header is cut short");
  if (!areEqual(await digest(file, length), file.subarray(FIXED, BODY))) damaged("its header is altered");
  const version = view.getUint32(8, true);
  if (version !== VERSION) {
    const advice = version > VERSION ? "update the page" : "it was saved by an older version";
    throw new StateVersionError(`its format version ${version} is not known here, only ${VERSION}: ${advice}`);
  }
  const { generation, program: owner, tensors: entries } = readHeader(file.subarray(BODY, BODY + length));
  if (owner !== program) {
    const [theirs, ours] = [owner.slice(0, 12), program.slice(0, 12)];
    throw new ForeignStateError(`it belongs to another program (hash ${theirs}..., and this one is ${ours}...)`);
  }
  const start = aligned(BODY + length);
  if (start > file.length) damaged("its padding is cut short");
  if (!isZero(file.subarray(BODY + length, start))) damaged("its padding is altered");
  return { program, generation, tensors: await readTensors(entries, file.subarray(start)) };
}

/** Whether a file was meant to be a state. */
export function startsLikeOne(file: Bytes): boolean {
  return areEqual(file.subarray(0, MAGIC.length), MAGIC);
}

function readHeader(text: Bytes): Decoded<typeof header> {
  let read: Decoded<typeof header>;
  try {
    read = decode(header, text, "header");
  } catch (error) {
    damaged(`its header is not as agreed (${messageOf(error)})`);
  }
  if (read.format !== FORMAT) damaged(`its header is of format '${read.format}'`);
  if (read.generation < 1) damaged(`its generation is ${read.generation}`);
  return read;
}

async function readTensors(entries: Entry[], data: Bytes): Promise<StoredTensor[]> {
  const seen = new Set<string>();
  const tensors: StoredTensor[] = [];
  let end = 0;
  for (const { name, dtype, shape, offset, nbytes, sha256: expected } of entries) {
    // Where the entry must lie is computed, never believed.
    const start = aligned(end);
    const size = product(shape) * ELEMENT_BYTES[dtype];
    if (shape.some((d) => d < 1) || nbytes !== size || seen.has(name)) damaged(`${name} has a bad shape, size or name`);
    seen.add(name);
    if (offset !== start) damaged(`${name} does not follow the tensor before it`);
    if (start + size > data.length) damaged(`the data of ${name} is cut short`);
    const bytes = data.subarray(start, start + size);
    if (!isZero(data.subarray(end, start)) || toHex(await sha256(bytes)) !== expected) {
      damaged(`the data of ${name} is altered`);
    }
    const tensor = { name, dtype, shape, bytes };
    if (!isFiniteTensor(tensor)) damaged(`${name} holds NaN or infinity`);
    tensors.push(tensor);
    end = start + size;
  }
  if (end !== data.length) damaged(`${data.length - end} bytes follow the last tensor`);
  return tensors;
}

/** sha256 of the fixed part and the header. */
function digest(file: Bytes, length: number): Promise<Bytes> {
  return sha256(file.subarray(0, FIXED), file.subarray(BODY, BODY + length));
}

function aligned(size: number): number {
  return Math.ceil(size / ALIGNMENT) * ALIGNMENT;
}

function damaged(problem: string): never {
  throw new DamagedStateError(problem);
}
