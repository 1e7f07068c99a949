// Written by scripts/manifest from converter/program/manifest/schema.toml: change that, and run it.

import { counted, int32, loss, matching, shape, sized, unique, within } from "./limits.ts";
import {
  anything,
  bool,
  checked,
  type Decoded,
  filled,
  list,
  mapOf,
  nullable,
  number,
  object,
  oneOf,
  record,
  string,
} from "./strict-json.ts";

/**
 * Type of the elements of a tensor; int8 is that of trained weights, too, and with uint8 and int16 that of kept
 * features, and of what a model is fed whose file takes integers.
 */
export type Dtype = Decoded<typeof dtype>;
export const dtype = oneOf("float32", "int32", "bool", "int8", "uint8", "int16");

/** Bytes of one element. */
export const ELEMENT_BYTES: Record<Dtype, number> = {"float32": 4, "int32": 4, "bool": 1, "int8": 1, "uint8": 1, "int16": 2};

/**
 * Type of the elements of what is stored.
 */
export type StoredDtype = Decoded<typeof storedDtype>;
export const storedDtype = oneOf("float32", "int32", "bool", "int8");

/**
 * How a program keeps its state: in the runtime, or passed in and out of every step, which is one call or, where it
 * is split, the gradients by one signature, in the arithmetic of an accelerator, and the update by another, in
 * float32.
 */
export type StateKind = Decoded<typeof stateKind>;
export const stateKind = oneOf("variables", "stateless", "split");

/**
 * Element type of the frozen layers, where the target gains by it.
 */
export type Frozen = Decoded<typeof frozen>;
export const frozen = oneOf(
  "float32",
  "int8",
  "int4",
  "int4-dynamic",
  "int4-blockwise",
  "int4-blockwise-64",
  "int4-blockwise-128",
  "float16",
);

/** Who feeds or reads a tensor of a signature. */
export type Role = Decoded<typeof role>;
const role = oneOf("input", "target", "weight", "learning_rate", "state", "gradient", "tick", "loss", "row_losses", "correct", "figure", "mask", "output", "fisher", "finite", "done");

/**
 * An input or output of a signature. `role` says who feeds or reads it.
 */
export type TensorSpec = Decoded<typeof tensorSpec>;
export const tensorSpec = checked(record(
  {
    name: string,
    shape: shape(1, 1),
    dtype: dtype,
    role: role,
  },
), (it, where) => sized(it.shape, ELEMENT_BYTES[it.dtype], `${where}.shape`));

/**
 * What one entry point of the program takes and gives, in order.
 */
export type Signature = Decoded<typeof signature>;
export const signature = filled(record(
  {
    inputs: unique(counted(list(tensorSpec), { least: 1 }), "name"),
    outputs: unique(counted(list(tensorSpec), { least: 1 }), "name"),
  }, {
    // where rows of a batch influence each other, in words: such a call takes a whole batch. Null: nowhere.
    mixing: nullable(string),
    // of `infer`, or `infer_features` in its place: why the model that is exported takes its own number of rows and no
    // other, in words. Null: it takes any.
    fixed: nullable(string),
  },
), { mixing: null, fixed: null });

/**
 * A state tensor in the model's own terms, which programs of all targets and batch sizes share.
 */
export type ModelTensor = Decoded<typeof modelTensor>;
export const modelTensor = record(
  {
    // of the parameter or slot.
    name: string,
    // of the whole parameter in the model's own layout; a slot that goes with one has its.
    shape: shape(0, 1),
    // how the state tensor is cut out of that.
    view: list(anything),
  },
);

/**
 * A tensor that outlives a step, as stored: a trained one, or a slot of the optimizer.
 */
export type StateTensor = Decoded<typeof stateTensor>;
export const stateTensor = checked(filled(record(
  {
    tensor: string,
    shape: shape(1, 1),
    dtype: storedDtype,
    slot: bool,
  }, {
    // what it is in the model's own terms; null where an older Pocketune did not say.
    model: nullable(modelTensor),
  },
), { model: null }), (it, where) => sized(it.shape, ELEMENT_BYTES[it.dtype], `${where}.shape`));

/**
 * What the integers of a trained weight are multiplied by: a state tensor that holds a number for each index of an
 * axis, or one for all.
 */
export type Scales = Decoded<typeof scales>;
export const scales = record(
  {
    tensor: string,
    // of the state tensor of the integers.
    axis: within(int32, { least: 0 }),
  },
);

/**
 * Where a state tensor lies in the weight that the user knows.
 */
export type Piece = Decoded<typeof piece>;
export const piece = filled(record(
  {
    tensor: string,
    view: list(anything),
  }, {
    // of a state tensor in int8; null where it holds the numbers themselves.
    scales: nullable(scales),
  },
), { scales: null });

/**
 * Where the frozen part of a weight lies in it, and the metadata entry that holds it, of a shape of its own.
 */
export type FrozenPart = Decoded<typeof frozenPart>;
export const frozenPart = record(
  {
    entry: matching(/^(?:pocketune\.frozen\/[\s\S]*)$/),
    shape: shape(1, 1),
    view: list(anything),
  },
);

/**
 * A trained weight by the model's own name, in the model's own layout.
 */
export type ParameterSpec = Decoded<typeof parameterSpec>;
export const parameterSpec = checked(record(
  {
    name: string,
    shape: shape(0, 1),
    dtype: storedDtype,
    pieces: counted(list(piece), { least: 1 }),
    // the part of it that does not train; null where the pieces cover all of it.
    frozen: nullable(frozenPart),
  },
), (it, where) => sized(it.shape, ELEMENT_BYTES[it.dtype], `${where}.shape`));

/**
 * A weight that no step changes, with what is added to some of its input channels.
 */
export type ChosenChannels = Decoded<typeof chosenChannels>;
export const chosenChannels = filled(record(
  {
    // its name.
    weight: string,
    // how many it has.
    channels: within(int32, { least: 1 }),
    // the state tensor that says which of them, int32, each once.
    indices: string,
    // the parameter that is added to these; zero at first.
    change: string,
  }, {
    // where the weight is state, a parameter, to which a session adds the change before it draws other channels: the
    // view from its own layout to [..., channels, outputs]. Null where the weight is a constant of the file.
    product: nullable(list(anything)),
  },
), { product: null });

/**
 * The dense layer that tells classes apart, where the runtime may set it without a gradient: classes are nearest to
 * the means of samples, and some may come later.
 */
export type ClassHead = Decoded<typeof classHead>;
export const classHead = filled(record(
  {
    // the parameter, of two axes.
    kernel: string,
    // the parameter [classes].
    bias: string,
    // of the kernel, along which the classes lie.
    axis: within(int32, { least: 0, most: 1 }),
    // classes of the model itself, the first ones.
    own: within(int32, { least: 0 }),
  }, {
    // the state tensor int32 [classes, 16] that says what each is called: the bytes of its name in UTF-8, and these,
    // four a number, the lowest first; 0 bytes of one that there is not. Null: there is no room for others.
    names: nullable(string),
    // whether what `features` gives is what the layer reads.
    takes_features: bool,
    // of features in integers: what they stand for is (feature - zero_point) times it.
    scale: number,
    // the integer that stands for 0.
    zero_point: int32,
  },
), { names: null, takes_features: false, scale: 1.0, zero_point: 0 });

/**
 * An output whose classes the labels name.
 */
export type LabelledOutput = Decoded<typeof labelledOutput>;
export const labelledOutput = record(
  {
    // its name.
    output: string,
    // its place among the model's outputs, from 0; states know it by that, as names of outputs may change.
    place: within(int32, { least: 0, most: 4095 }),
    // of its last layer, those that the state holds: with other labels they mean something else.
    parameters: list(string),
  },
);

/**
 * One line of the resolved update scheme: how much of a weight trains.
 */
export type UpdateRow = Decoded<typeof updateRow>;
export const updateRow = record(
  {
    parameter: string,
    fraction: number,
    why: string,
  },
);

/**
 * The resolved update scheme: which weights train.
 */
export type Update = Decoded<typeof update>;
export const update = record(
  {
    scheme: string,
    table: list(updateRow),
  },
);

/**
 * What a loss takes for a target: labels of classes where it is of int32, numbers where it is of float32.
 */
export type TargetLabels = Decoded<typeof targetLabels>;
export const targetLabels = filled(record(
  {
  }, {
    // how many classes there are: labels go from 0 to one less, and of numbers there is one a class along the last
    // axis; null where numbers tell no classes apart.
    count: nullable(within(int32, { least: 1 })),
    // whether labels below 0 are left out.
    masked: bool,
    // one more label that is left out, be it among the others or beyond them.
    ignored: nullable(int32),
    // the least number; null where there is none.
    least: nullable(number),
    // the largest; null where there is none.
    most: nullable(number),
    // the only numbers that there are, where these are few.
    only: list(number),
    // what to pass in the place of other numbers; empty where nothing is to be said.
    advice: string,
  },
), { count: null, masked: false, ignored: null, least: null, most: null, only: [], advice: "" });

/**
 * A learning rate that the program computes itself; a step's input `learning_rate` multiplies it.
 */
export type RunningRate = Decoded<typeof runningRate>;
export const runningRate = filled(record(
  {
    // in words.
    description: string,
  }, {
    // the number of the step (0, 1, ...) from which on no update changes anything; null where that is never, or not
    // known.
    zero_from: nullable(within(int32, { least: 0 })),
    // the state tensor [1] that counts these steps; null where `zero_from` needs none.
    counter: nullable(string),
  },
), { zero_from: null, counter: null });

/**
 * What an engine refused or computed wrongly.
 */
export type CertificateFailure = Decoded<typeof certificateFailure>;
export const certificateFailure = filled(record(
  {
    // of the user's model; empty where it is nobody's, or not known.
    layer: string,
    // the builtin; empty where it is not known.
    operator: string,
    // what happened, in words.
    what: string,
  }, {
    // what to change; empty where there is none.
    advice: string,
  },
), { advice: "" });

/**
 * What came of running a program's signatures on an engine, beside the CPU. An error is the largest difference of a
 * tensor by the largest number that the CPU has for it; null where the engine gave none, or no finite one.
 */
export type Certificate = Decoded<typeof certificate>;
export const certificate = filled(record(
  {
    // the engine as it was asked for: `gpu`, `hexagon:SM8650`, `vendor-npu` of another distribution.
    on: matching(/^(?:gpu|web|android|tflm|hexagon:[A-Z0-9]+|[a-z0-9]+(-[a-z0-9]+)+(:[A-Za-z0-9]+)?)$/),
    // what it is.
    engine: string,
    // of it; the certificate says nothing of another one.
    version: string,
    // what it ran on.
    driver: string,
    // when, in UTC.
    date: matching(/^(?:[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)$/),
    // how many were compared, each from a state of the CPU's.
    steps: within(int32, { least: 1 }),
    // whether the engine takes every operator and computes every result rightly.
    ok: bool,
    // whether it takes every operator.
    whole: bool,
    // in which it computes.
    precision: string,
  }, {
    // of the worst loss.
    loss_error: nullable(within(number, { least: 0 })),
    // of the worst state tensor.
    update_error: nullable(within(number, { least: 0 })),
    // of the worst other result.
    output_error: nullable(within(number, { least: 0 })),
    // update_error of the CPU where inputs and state are rounded to the engine's precision; of float16 alone.
    floor: nullable(within(number, { least: 0 })),
    // what went wrong, the first operators first.
    failures: counted(list(certificateFailure), { most: 20 }),
  },
), { loss_error: null, update_error: null, output_error: null, floor: null, failures: [] });

/**
 * A weight, or the part of one, that does not train.
 */
export type FrozenWeight = Decoded<typeof frozenWeight>;
export const frozenWeight = record(
  {
    // in the model.
    name: string,
    // of the whole weight, in the model's own layout.
    shape: shape(0, 1),
    // of the numbers that do not train: the first 16 hexadecimal digits of their sha256.
    digest: matching(/^(?:[0-9a-f]{16})$/),
  },
);

/**
 * What two programs must have in common beside their state tensors for one to go on with the other's state. Neither
 * lines, folders, target, batch size, order nor signatures have a part in it.
 */
export type Identity = Decoded<typeof identity>;
export const identity = record(
  {
    // its name, for people.
    optimizer: string,
    // 16 hexadecimal digits of how the optimizer computes an update and its slots, whatever its rates are.
    update: matching(/^(?:[0-9a-f]{16})$/),
    // the same of what the model computes of its inputs and weights, adapters included.
    forward: matching(/^(?:[0-9a-f]{16})$/),
    // the weights that do not train, in the order in which the model reads them.
    frozen: list(frozenWeight),
    // the same of what became int8, int4 or float16, and how; empty where nothing did.
    int8: matching(/^(?:([0-9a-f]{16})?)$/),
    // of the way in which `forward` and `update` are computed.
    version: int32,
  },
);

/**
 * What a program says about itself.
 */
export type ManifestFields = Decoded<typeof manifest>;
export const manifest = filled(record(
  {
    format: matching(/^(?:pocketune\/1)$/),
    name: string,
    // sha256 of the operators, constants, built weights and classes of this very program.
    graph_hash: matching(/^(?:[0-9a-f]{64})$/),
    target: string,
    state: stateKind,
    // rows of one step.
    batch: within(int32, { least: 1 }),
    // rows of one call, `batch` where all come at once. Else a step is a call of `accumulate` for each micro-batch,
    // with weights that sum to one over the whole step, and one of `apply`. Of `gradients` the caller adds up what it
    // gives, each by its share of the weight of the whole step.
    micro_batch: within(int32, { least: 1 }),
    // its name, or that of each output which has one.
    loss: loss,
    optimizer: string,
    update: update,
    signatures: mapOf(signature),
    state_tensors: unique(list(stateTensor), "tensor"),
    parameters: unique(list(parameterSpec), "name"),
    // predicted.
    costs: mapOf(nullable(number)),
  }, {
    // names of the classes, in order.
    labels: nullable(list(string)),
    // the outputs whose classes these are; none where the state itself names the classes, or an older Pocketune built
    // the program.
    labelled: unique(list(labelledOutput), "output"),
    // how the app makes an input, in terms of its own.
    preprocessing: nullable(object),
    // what people are to know of the model, by names as of a model card: `license`, `author`, `source`, `description`.
    card: mapOf(string),
    // element type of the frozen layers where the target gains by it.
    frozen: frozen,
    // of a step that is given none; null where the rate runs in the program.
    learning_rate: nullable(within(number, { least: 0 })),
    // the rate that runs in the program, where one does.
    running_rate: nullable(runningRate),
    // the weights of which chosen channels train.
    choices: unique(list(chosenChannels), "weight", "indices"),
    // what `gradients` gives is this many times the gradient; `apply` takes it so. A power of two.
    loss_scale: within(number, { least: 5.960464477539063e-08, most: 16777216 }),
    // weight of a penalty for leaving the base: what the step minimizes, and gives as `loss`, is the loss + this times
    // the divergence of the model's probabilities from those of the model as it was built; `evaluate` gives the loss
    // alone.
    keep_base: within(number, { least: 0.0, most: 1000000.0 }),
    // the largest L2 norm of a row's gradient over all trained tensors, to which larger ones are scaled down before
    // the mean is taken; null: any.
    row_clipping: nullable(within(number, { least: 0.0, most: 1000000.0 })),
    // on which engines the step was run, the last time of each.
    certificates: unique(list(certificate), "on"),
    // what the loss takes for each target, by its name; where nothing is said, any numbers.
    target_labels: mapOf(targetLabels),
    // operations of the step whose value or slope may be infinite though all that they take is finite, in words; where
    // the runtime keeps the state, the signatures that update it then give `finite`: 0, or NaN where something that
    // they wrote is not finite.
    poles: counted(list(string), { most: 8 }),
    // the last layer, where the runtime may set it; null where not.
    head: nullable(classHead),
    // what a saved state belongs to; null where an older Pocketune built the program.
    identity: nullable(identity),
  },
), { labels: null, labelled: [], preprocessing: null, card: new Map(), frozen: "float32", learning_rate: null, running_rate: null, choices: [], loss_scale: 1.0, keep_base: 0.0, row_clipping: null, certificates: [], target_labels: new Map(), poles: [], head: null, identity: null });

