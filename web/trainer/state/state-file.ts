import { areEqual, type Bytes, isFinite32, isZero, sha256, toHex, utf8 } from "../bytes.ts";
import { DamagedStateError, DivergedError, InputError, messageOf, StateVersionError } from "../errors.ts";
import { byteSize, type Manifest, product } from "../manifest/manifest.ts";
import { ELEMENT_BYTES, identity, modelTensor, storedDtype } from "../manifest/manifest-records.ts";
import {
  bool,
  type Decoded,
  decode,
  filled,
  integer,
  list,
  nullable,
  record,
  string,
} from "../manifest/strict-json.ts";
import { givesElements } from "../manifest/view.ts";
import { areChannels, type StateSpec, type StoredTensor } from "../program/state-spec.ts";

const MAGIC = utf8("PTSTATE\n");
const VERSION = 2;
const FORMAT = `pocketune-state/${VERSION}`;
const OLD_FORMAT = "pocketune-state/1";
const ALIGNMENT = 64;
const FIXED = 16;
const BODY = FIXED + 32;
const MAX_HEADER = 4 << 20;
const MAX_BYTES = 2 ** 31 - 1;

/** A state in a file; `spec` says what it belongs to and what its tensors are. */
export interface State {
  readonly spec: StateSpec;
  readonly generation: number;
  readonly tensors: StoredTensor[];
}

/** How the names of slots began in version 1, which did not say what is one: of an optimizer, or the call's number. */
const OLD_SLOTS = ["optimizer/", "random/step"];

const oldEntry = {
  name: string,
  dtype: storedDtype,
  shape: list(integer),
  offset: integer,
  nbytes: integer,
  sha256: string,
};
const common = { format: string, program: string, generation: integer };
const header = filled(
  record(
    {
      ...common,
      identity: nullable(identity),
      tensors: list(record({ ...oldEntry, slot: bool, model: nullable(modelTensor) })),
    },
    { labels: list(list(string)) },
  ),
  { labels: [] },
);
/** The header of version 1, which says nothing of the model. */
const oldHeader = record({ ...common, tensors: list(record(oldEntry)) });

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
  const bytesOf = (name: string) => tensors.find((tensor) => tensor.name === name)?.bytes ?? new Uint8Array();
  return isAll && choices.every((choice) => areChannels(choice, bytesOf(choice.indices)));
}

/**
 * A state in which some tensors, by their names, are others. Throws InputError: the program has no such tensor, or one of
 * another size, or the channels are none that its weights have; DivergedError: one is not finite.
 */
export function replaced(
  manifest: Manifest,
  state: StoredTensor[],
  tensors: ReadonlyMap<string, Bytes>,
): StoredTensor[] {
  const known = new Map(state.map((tensor) => [tensor.name, tensor]));
  for (const [name, bytes] of tensors) {
    const spec = known.get(name);
    if (!spec) throw new InputError(`${name}: the program has no such tensor`);
    if (bytes.length !== spec.bytes.length) {
      throw new InputError(`${name}: ${bytes.length} bytes, and it has ${spec.bytes.length}`);
    }
    if (!isFiniteTensor({ ...spec, bytes })) throw new DivergedError(`${name} holds NaN or infinity`);
  }
  const next = state.map((tensor) => ({ ...tensor, bytes: tensors.get(tensor.name) ?? tensor.bytes }));
  if (!isStateOf(manifest, next)) throw new InputError("the channels are none that the program's weights have");
  return next;
}

/** How many bytes a file of such a state takes at most. */
export function largestFile({ tensors }: StateSpec): number {
  const data = tensors.reduce((sum, tensor) => sum + byteSize(tensor), 0);
  return BODY + MAX_HEADER + ALIGNMENT * (tensors.length + 1) + data;
}

/** The bytes of a state file. Throws DivergedError: a tensor holds NaN or infinity; such a state is never written. */
export async function pack(state: State): Promise<Bytes> {
  let end = 0;
  const entries: Entry[] = [];
  const kinds = new Map(state.spec.tensors.map((tensor) => [tensor.tensor, tensor]));
  for (const tensor of state.tensors) {
    if (!isFiniteTensor(tensor))
      throw new DivergedError(`the state is not saved: ${tensor.name} holds NaN or infinity`);
    const { name, dtype, shape, bytes } = tensor;
    const { slot, model = null } = kinds.get(name) ?? { slot: false };
    const offset = aligned(end);
    end = offset + bytes.length;
    entries.push({ name, dtype, shape, offset, nbytes: bytes.length, sha256: toHex(await sha256(bytes)), slot, model });
  }
  const { program, identity, labels } = state.spec;
  const { generation } = state;
  // Labels are left out where there are none, as older versions wrote it.
  const said = {
    format: FORMAT,
    program,
    generation,
    identity,
    tensors: entries,
    ...(labels.length > 0 && { labels }),
  };
  const text = utf8(JSON.stringify(said));
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
 * The state in the bytes of a file, of whatever program, as views of them. `check` is told what the state is before its
 * tensors are looked at, and may refuse it. Throws DamagedStateError: a byte is missing, added or altered;
 * StateVersionError: of another version of the format.
 */
export async function unpack(file: Bytes, check: (spec: StateSpec) => void = () => undefined): Promise<State> {
  if (!startsLikeOne(file) || file.length < BODY) damaged("it is no state file, or cut short");
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = view.getUint32(12, true);
  if (length > Math.min(MAX_HEADER, file.length - BODY)) damaged("its header is cut short");
  if (!areEqual(await digest(file, length), file.subarray(FIXED, BODY))) damaged("its header is altered");
  const version = view.getUint32(8, true);
  if (version < 1 || version > VERSION) {
    const advice = version > VERSION ? "update the page" : "it was saved by an older version";
    throw new StateVersionError(`its format version ${version} is not known here, only 1 to ${VERSION}: ${advice}`);
  }
  const read = readHeader(file.subarray(BODY, BODY + length), version);
  const { generation, program, identity, labels, tensors: entries } = read;
  const kinds = entries.map(({ name, shape, dtype, slot, model }) => ({ tensor: name, shape, dtype, slot, model }));
  const spec = { program, tensors: kinds, identity, labels };
  check(spec);
  const start = aligned(BODY + length);
  if (start > file.length) damaged("its padding is cut short");
  if (!isZero(file.subarray(BODY + length, start))) damaged("its padding is altered");
  return { spec, generation, tensors: await readTensors(entries, file.subarray(start)) };
}

/** Whether a file was meant to be a state. */
export function startsLikeOne(file: Bytes): boolean {
  return areEqual(file.subarray(0, MAGIC.length), MAGIC);
}

function readHeader(text: Bytes, version: number): Decoded<typeof header> {
  let read: Decoded<typeof header>;
  try {
    read = version === 1 ? asNew(decode(oldHeader, text, "header")) : decode(header, text, "header");
  } catch (error) {
    damaged(`its header is not as agreed (${messageOf(error)})`);
  }
  if (read.format !== (version === 1 ? OLD_FORMAT : FORMAT)) damaged(`its header is of format '${read.format}'`);
  if (read.generation < 1) damaged(`its generation is ${read.generation}`);
  const bad = read.tensors.find(({ model, shape }) => model && !givesElements(model, shape));
  if (bad) damaged(`${bad.name} has a bad view`);
  return read;
}

/** A header of version 1 in the form of the newest. */
function asNew({ tensors, ...rest }: Decoded<typeof oldHeader>): Decoded<typeof header> {
  // A slot has a name of its own, which no weight has.
  const isSlot = (name: string) => OLD_SLOTS.some((beginning) => name.startsWith(beginning));
  return {
    ...rest,
    identity: null,
    labels: [],
    tensors: tensors.map((it) => ({ ...it, slot: isSlot(it.name), model: null })),
  };
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
