import { InputError, type Manifest, type StateTensor } from "../trainer.ts";

/** A slot of the optimizer that holds the loss of the last step. */
export const LOSS_OF_STEP = "optimizer/loss";

/** What the user calls it. */
export function calledOf(tensor: StateTensor): string {
  return tensor.model?.name ?? tensor.tensor;
}

/**
 * What programs have in common whose trained tensors may be averaged, as the host's `pocketune.federated.identity` gives it: 64
 * hexadecimal digits. `personal`: the names of the trained tensors that stay at home; the labels have no part in it where these are
 * all that stands for classes. Throws InputError where there is no such thing.
 */
export async function federatedIdentity(
  manifest: Manifest,
  personal: ReadonlySet<string> = new Set(),
): Promise<string> {
  if (manifest.choices.length > 0) {
    throw new InputError(
      `${manifest.name} trains channels that each device chooses: they cannot be averaged. Build with update='sparse'`,
    );
  }
  if (manifest.stateTensors.some((tensor) => tensor.dtype === "int8")) {
    throw new InputError(
      `${manifest.name} keeps weights in int8, to which a mean would be rounded in each round. Build with train_as='float32'`,
    );
  }
  const own = manifest.identity;
  if (!own) {
    throw new InputError(`${manifest.name} does not say what it is: an older Pocketune built it. Build it anew`);
  }
  const trained = manifest.stateTensors.filter((tensor) => !tensor.slot && tensor.tensor !== LOSS_OF_STEP);
  const lines = trained.map((it) => `${calledOf(it)} ${it.dtype} ${(it.model?.shape ?? it.shape).join("x")}`);
  const text = [
    `pocketune-federated/${own.version}`,
    own.forward,
    own.update,
    own.int8,
    ...own.frozen.map((weight) => weight.digest),
    ...lines.sort(byCodePoint),
    ...sharedLabels(manifest, personal).map((label) => `class ${label}`),
  ].join("\n");
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The labels; none where all that trains of each layer that gives their classes is personal. */
function sharedLabels(
  { fields: { head, labelled, labels } }: Manifest,
  personal: ReadonlySet<string>,
): readonly string[] {
  const layers = head?.names ? [[head.kernel, head.bias]] : labelled.map(({ parameters }) => parameters);
  const own = layers.length > 0 && layers.every((layer) => layer.length > 0 && layer.every((it) => personal.has(it)));
  return own ? [] : (labels ?? []);
}

/** The order of Python's strings. */
function byCodePoint(a: string, b: string): number {
  const [these, those] = [[...a], [...b]];
  const at = these.findIndex((letter, i) => letter !== those[i]);
  if (at < 0) return these.length - those.length;
  return (these[at]?.codePointAt(0) ?? 0) - (those[at]?.codePointAt(0) ?? -1);
}
