import { product } from "./manifest.ts";
import type { ChosenChannels, ParameterSpec, StateTensor } from "./manifest-records.ts";
import { viewed } from "./view.ts";

/** The weights that are state because their channels are redrawn, and which of their channels train. */
export function redrawnOf({
  choices,
  parameters,
}: {
  choices: ChosenChannels[];
  parameters: ParameterSpec[];
}): [ParameterSpec, ChosenChannels][] {
  return choices.flatMap((choice) => {
    const weight = parameters.find((parameter) => parameter.name === choice.weight);
    return choice.product && weight ? [[weight, choice]] : [];
  });
}

/** What is wrong with a weight in the state, or with what is added to its channels, where there is one. */
export function problemOfRedrawn(
  parameters: ParameterSpec[],
  state: Map<string, StateTensor>,
  choice: ChosenChannels,
  many: number,
): string | undefined {
  if (!choice.product) return undefined;
  const [weight, change] = [choice.weight, choice.change].map((name) => parameters.find((it) => it.name === name));
  if (!weight) return `: '${choice.weight}' is not in parameters`;
  if (!change) return `: '${choice.change}' is not in parameters`;
  const cut = [weight, change].find((it) => !isWhole(it, state));
  if (cut) return `: '${cut.name}' is not whole in one tensor of float32`;
  const shape = choice.product.reduce<number[] | undefined>((now, step) => now && viewed(step, now), weight.shape);
  if (!shape) return `.product: it does not fit [${weight.shape}]`;
  const wanted = [...shape.slice(0, -2), many, ...shape.slice(-1)];
  const fits = shape.length > 1 && shape.at(-2) === choice.channels && product(shape) === product(weight.shape);
  if (fits && String(change.shape) === String(wanted)) return undefined;
  return `.product: [${change.shape}] is not what is added to ${many} channels of [${shape}]`;
}

/** Whether one tensor of the state, in float32, is all of it. */
function isWhole({ shape, dtype, pieces, frozen }: ParameterSpec, state: Map<string, StateTensor>): boolean {
  const [piece, ...others] = pieces;
  const stored = piece && others.length === 0 && !piece.scales && !frozen ? state.get(piece.tensor) : undefined;
  return dtype === "float32" && stored !== undefined && product(stored.shape) === product(shape);
}
