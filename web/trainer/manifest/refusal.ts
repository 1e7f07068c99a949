import type { Manifest } from "./manifest.ts";

/** How many operations are named. */
const NAMED = 3;

/** Why a step was refused whose loss, or something that it wrote, is not finite: operations come before the learning rate. */
export function refusal({ fields }: Manifest, loss: number, rate: number): string {
  const isLoss = !Number.isFinite(loss);
  const what = isLoss
    ? `the loss is ${loss}`
    : `the step makes weights or slots NaN or infinite, though its loss is ${loss}`;
  const diverged = `the training has diverged, often because the learning rate (${rate}) is too high`;
  const { poles } = fields;
  if (poles.length === 0) return `${what}: ${diverged}`;
  const named = poles.slice(0, NAMED).join(" or ") + (poles.length > NAMED ? " or others" : "");
  return (
    `${what}: ${named} can be infinite, or have an infinite slope, at finite numbers, as a root or a logarithm at 0. ` +
    `Keep what it takes away from these, for example by adding a small number; else ${diverged}`
  );
}
