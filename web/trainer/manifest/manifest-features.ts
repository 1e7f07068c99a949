import { FEATURES, type Manifest, ON_FEATURES, ofRole } from "./manifest.ts";
import type { TensorSpec } from "./manifest-records.ts";

/** What the frozen first layers give is what the signatures on it take, and these give what those of their names do. */
export function checkFeatures(manifest: Manifest, fail: (problem: string) => never): void {
  const { signatures } = manifest.fields;
  const features = signatures.get(FEATURES);
  if (!features) return;
  for (const whole of [manifest.stepName, "evaluate", "infer"]) {
    const name = whole + ON_FEATURES;
    const onFeatures = signatures.get(name);
    if (!onFeatures) continue;
    if (differ(ofRole(features.outputs, "output"), ofRole(onFeatures.inputs, "input"))) {
      fail(`signatures.${name}: its inputs are not what features gives`);
    }
    if (whole !== manifest.stepName && differ(onFeatures.outputs, manifest.signature(whole).outputs)) {
      fail(`signatures.${name}: what it gives is not what ${whole} gives`);
    }
  }
}

function differ(one: TensorSpec[], other: TensorSpec[]): boolean {
  return facts(one).join("\n") !== facts(other).join("\n");
}

/** What is compared of tensors, without their first axes, as words. */
export function facts(specs: TensorSpec[], axes = 0): string[] {
  return specs.map((spec) => fact(spec.name, spec.shape.slice(axes), spec.dtype));
}

/** What is compared of one. */
export function fact(name: string, shape: number[], dtype: string): string {
  return JSON.stringify([name, shape, dtype]);
}
