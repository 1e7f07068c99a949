// Written by scripts/manifest from converter/program/manifest/schema.toml: change that, and run it.

/** The format that is known here. */
export const FORMAT = "pocketune/1";

/** No manifest is larger. */
export const MAX_BYTES = 4194304;

/** By how much a number may miss its bounds: what rounding does. */
export const SLACK = 1e-06;

/** No tensor takes more bytes: a flatbuffer ends at 2 GiB. */
export const MAX_TENSOR_BYTES = 2147483647;
