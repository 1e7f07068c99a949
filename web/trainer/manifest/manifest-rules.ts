// Written by scripts/manifest from converter/program/manifest/schema.toml: change that, and run it.

import type { Dtype, Role } from "./manifest-records.ts";

/** What a role says of a tensor: see the schema. */
export interface RoleRule {
  readonly in?: true;
  readonly out?: true;
  readonly row?: true;
  readonly named?: true;
  readonly state?: true;
  readonly dtype?: Dtype;
  readonly size?: "1" | "rows";
  readonly prefix?: string;
}

export const ROLES: Readonly<Record<Role, RoleRule>> = {
  input: {"in": true, "row": true},
  target: {"in": true, "row": true},
  weight: {"in": true, "row": true, "named": true, "dtype": "float32", "size": "rows"},
  learning_rate: {"in": true, "named": true, "dtype": "float32", "size": "1"},
  state: {"in": true, "out": true, "state": true},
  gradient: {"in": true, "out": true, "state": true, "prefix": "gradient/"},
  tick: {"in": true, "named": true, "dtype": "float32", "size": "1"},
  loss: {"out": true, "named": true, "dtype": "float32", "size": "1"},
  row_losses: {"out": true, "row": true, "named": true, "dtype": "float32", "size": "rows"},
  correct: {"out": true, "named": true, "dtype": "float32", "size": "1"},
  figure: {"out": true, "dtype": "float32", "size": "1"},
  mask: {"out": true, "dtype": "float32", "prefix": "mask/"},
  output: {"out": true},
  fisher: {"out": true, "prefix": "fisher/"},
  finite: {"out": true, "named": true, "dtype": "float32", "size": "1"},
  done: {"out": true, "named": true, "dtype": "float32", "size": "1"},
};

/** What the name of a tensor of the role `gradient` begins with. */
export const GRADIENT = "gradient/";
/** What the name of a tensor of the role `mask` begins with. */
export const MASK = "mask/";
/** What the name of a tensor of the role `fisher` begins with. */
export const FISHER = "fisher/";

/** What a signature takes and gives: see the schema. */
export interface SignatureRule {
  readonly one?: readonly Role[];
  readonly some?: readonly Role[];
  readonly rows?: "call" | "own";
  readonly same?: readonly Role[];
}

export const SIGNATURES: ReadonlyMap<string, SignatureRule> = new Map<string, SignatureRule>([
  ["train", {"one": ["weight", "loss", "learning_rate"], "some": ["input"], "rows": "call"}],
  ["accumulate", {"one": ["weight", "loss"], "some": ["input"], "rows": "call"}],
  ["gradients", {"one": ["weight", "loss"], "some": ["input"], "rows": "call"}],
  ["train_features", {"one": ["weight", "loss", "learning_rate"], "some": ["input"], "rows": "call", "same": ["target"]}],
  ["accumulate_features", {"one": ["weight", "loss"], "some": ["input"], "rows": "call", "same": ["target"]}],
  ["gradients_features", {"one": ["weight", "loss"], "some": ["input"], "rows": "call", "same": ["target"]}],
  ["evaluate_features", {"one": ["weight", "loss"], "some": ["input"], "rows": "call", "same": ["target"]}],
  ["infer_features", {"some": ["input", "output"], "rows": "own"}],
  ["apply", {"one": ["learning_rate"]}],
  ["evaluate", {"one": ["weight", "loss"], "some": ["input"], "rows": "call", "same": ["input", "target"]}],
  ["infer", {"some": ["input", "output"], "rows": "own", "same": ["input"]}],
  ["infer_n", {"some": ["input", "output"], "rows": "own", "same": ["input"]}],
  ["features", {"some": ["input", "output"], "rows": "own", "same": ["input"]}],
  ["prefill", {"some": ["input", "output"], "rows": "own"}],
  ["decode", {"some": ["input", "output"], "rows": "own"}],
  ["fisher", {"one": ["weight"], "some": ["input", "fisher"], "rows": "call", "same": ["input", "target"]}],
  ["save", {"one": ["tick"]}],
  ["restore", {"one": ["done"]}],
  ["initialize", {"one": ["tick", "done"]}],
]);
