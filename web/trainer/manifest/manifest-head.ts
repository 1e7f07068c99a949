import { ofRole, rowSize } from "./manifest.ts";
import type { ManifestFields, StateTensor } from "./manifest-records.ts";

/** The last layer of a manifest: kernel and bias are of the same classes, names and features of a size with them. */
export function checkHead(
  fields: ManifestFields,
  state: ReadonlyMap<string, StateTensor>,
  fail: (problem: string) => never,
): void {
  const { head, parameters, signatures } = fields;
  if (head === null) return;
  const shapes = new Map(parameters.map((parameter) => [parameter.name, parameter.shape]));
  const kernel = shapes.get(head.kernel) ?? [];
  const [classes = 0, ...others] = shapes.get(head.bias) ?? [];
  if (kernel.length !== 2 || others.length || kernel[head.axis] !== classes || head.own > classes) {
    fail(`head: '${head.kernel}' and '${head.bias}' are no kernel and bias of ${head.own} classes or more`);
  }
  const stored = head.names === null ? undefined : state.get(head.names);
  if (head.names !== null && (stored?.dtype !== "int32" || `${stored.shape}` !== `${classes},16`)) {
    fail(`head.names: '${head.names}' is no int32[${classes}, 16] in state_tensors`);
  }
  const features = ofRole(signatures.get("features")?.outputs ?? [], "output");
  const width = kernel[1 - head.axis];
  if (head.takes_features && (features.length !== 1 || features.some((spec) => rowSize(spec) !== width))) {
    fail(`head: features gives no ${width} numbers a row, which '${head.kernel}' takes`);
  }
}
