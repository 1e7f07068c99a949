"""Build options: each is one field here, for Python, recipes and the command line alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

from converter.backend.targets import Target
from converter.driver.option_fields import option
from converter.driver.option_values import (
    check_card,
    check_keep_base,
    check_loss_scale,
    check_names,
    check_preprocessing,
    check_proximal,
    check_row_clipping,
    check_signatures,
    check_writable,
)
from converter.support.errors import UsageError
from converter.training.schemes import UpdateScheme

#: How many numbers of a row share a scale, by what `frozen` calls it; None: all of them.
INT4_BLOCKS = {"int4": None, "int4-dynamic": None, "int4-blockwise": 32}
INT4_BLOCKS |= {f"int4-blockwise-{block}": block for block in (64, 128)}


@dataclass(frozen=True)
class Options:
    """What is asked of a build, each field as the keyword of `pocketune.build` that bears its name.

    Attributes:
        loss: a name of `pocketune.losses.LOSSES` (those with "crossentropy" from logits: a softmax or sigmoid that the
            model ends in is joined with them), what `pocketune.losses.named_loss` gives for a name and options, or a
            JAX function `(outputs, targets) -> per-example loss [B]`, of several outputs and targets as `infer` gives
            and `train` takes them. For several outputs also a dict of these by output, or a list in their order, None
            for an output without one: the losses are added up. None: what a Keras model was compiled with, else
            `sparse_categorical_crossentropy`, of a language model `next_token`. Of Keras and PyTorch also their own:
            of `keras.losses`, `torch.nn` and `torch.nn.functional`, or a function of tensors.
        optimizer: `sgd`, `momentum`, `adam`, `adamw`, `rmsprop`, `adagrad`, `lion`, an optax.GradientTransformation, or
            for a PyTorch module a `torch.optim.Optimizer` or a scheduler of one; the constant learning rate that it was
            built with is the default of `session.train`'s (of a name alone a usual one, which is noted). None: what a
            Keras model was compiled with, else `adam` for files (`.tflite`, language models) and `sgd`.
        update: a scheme's name, glob rules {"pattern": fraction, "bias", a LoRA, SkipLoRA or Channels}, or an
            UpdateScheme.
        batch: rows of one training step.
        micro_batch: rows that are computed at once, a divisor of `batch`: the gradients of a step's micro-batches are
            added up (signatures `accumulate` and `apply` in place of `train`), which takes its memory and one more copy
            of what trains. None: the whole batch.
        target: runtime, version and processor to choose forms for; an unknown name lists them. Several, separated by
            commas (`gpu,litert-2`): the program runs on all of them.
        state: `variables` (the runtime keeps the weights), `stateless` (they are inputs and outputs of a step), or
            `split`: a step is `gradients`, which an accelerator may run in float16, and `apply`, which updates in
            float32 on the CPU. None: what the target takes, `variables` on CPUs.
        y: for a JAX loss whose y is not like the output: a `jax.ShapeDtypeStruct` of y (first axis the batch), a
            dict or tuple of them for several targets, for losses by output a dict by output.
        signatures: what the program offers: `train`, `evaluate`, `infer`, and `features`, which adds `features` (the
            frozen first layers) and `train_features` (a step on what they gave). `train_features`, `evaluate_features`
            and `infer_features` in the place of the first three: no other signature than `features` then holds the
            frozen layers. `fisher` is what `session.choose_channels` needs. `infer_1`, of any number of rows, is
            `infer` for so many: a session takes the one that fits best, so that one row does not cost what a batch
            does. The runtime packs the frozen weights again for each signature that uses them: leave out what is not
            called. `generate`, of a language model, adds `prefill` and `decode`, by which it writes a text on.
        labels: names of all classes in order, for the app; kept in the manifest, and in states, which name them.
        preprocessing: how the app makes an input, as JSON of the app's own; kept in the manifest.
        card: what people are to know of the model, texts by names as of a model card: `license`, `author`, `source`,
            `description`, and others; kept in the manifest, beside what a file says of itself.
        frozen: `float32`, or `int8` for frozen layers where the target gains by it: weights and activations around
            convolutions, weights in dense layers; or weights of dense layers and embeddings as integers of four bits,
            of which one matrix after the other is unpacked where it is used, exactly in both directions: `int4` with a
            scale for each output, `int4-blockwise` with one for each 32 numbers of its row (or `int4-blockwise-64`,
            `int4-blockwise-128`), which is nearer to the float32 ones and as quick; or `int4-dynamic`: `int4` whose
            dense layers round what they read to int8 by rows (dynamic range) in the forward pass of every signature,
            but for logits: some times as quick, and packed in memory, with exact derivatives (straight-through); or
            `float16`: weights of all layers, the nearest, in half the bytes of the file and the same memory beside it;
            where gradients pass dense layers a step takes up to a third longer.
            What trains stays float32. Of a `.tflite` file frozen weights that are float16 there are so here.
        train_as: `int8`: weights that train are kept as integers of eight bits with a scale for each output channel, a
            quarter of the state, and updated in that grid by quantization-aware scaling, rounded at random. Biases and
            other vectors stay float32. For an optimizer without slots, on CPUs (`state="variables"`).
        calibration: for `int8`: x as for `TrainingSession.infer`, a hundred rows or so that look like those in use, or
            a pair (x, y), with which the accuracy before and after is measured. A warning says when more than one point
            is lost; `program.quantization` has the figures, and what became of each frozen layer. `int4` and `float16`
            need none, and are measured where there are some.
        memory_budget: resident memory that a session may take, as `"64MiB"` or in bytes: the largest micro-batch is
            chosen that fits, of the given one it is checked; where none does, a step goes block by block (see
            `blocks`). `program.tried` says what each costs. No filter is stored twice, as is quicker for some.
        blocks: `on`: a step holds one block of the model at a time: what enters each is kept, its forward pass is
            computed again in the backward pass, frozen matrices are read from the file where they are used, not kept as
            the kernels want them, and logits of many classes are made a few rows at a time. Where that takes less
            memory; it costs about a third more operations. `auto`: where the memory budget needs it; `off`: never.
        batch_norm: what batch normalization layers of a Keras model that are not frozen do in a step: `fixed` (they use
            their moving statistics and keep them) or `train` (those of the batch, which the moving ones follow).
        dropout: `train`: dropout and noise layers act in a step, by random numbers that the program makes; `off`: not.
        augment: a JAX function `(x, key) -> x` that a step applies to its inputs first, of several a tuple or a dict by
            name; `evaluate` and `infer` take them as they are. It draws with `jax.random` and the key: each step has
            random numbers of its own, which the program makes. `keras`: random layers that a Keras model begins with.
        preprocess: the program's input is uint8 [batch, height, width, channels] then, as phones deliver images, of
            which it makes what the model takes: `0..1`, `-1..1`, `0..255`, `imagenet`, or a table for (scale * pixel -
            mean) / std of each channel: `mean` (0) and `std` (1), `scale` (1 / 255), `order` (`RGB`; `BGR`), `layout`
            of the model's input (`NCHW` or `NHWC`, where its shape does not tell). Of several images a dict by input.
        check: run one step in the stock interpreter and refuse a program that is not right.
        loss_weights: for losses by output: what each is multiplied by, in the same form.
        loss_scale: for `split`, a power of two: what gradients are multiplied by in `gradients` and divided by in
            `apply`, where an engine that rounds to float16 would lose small ones (more than 1) or cut large ones off.
        keep_base: weight of a penalty that keeps the model near the one that is built: `train` minimizes, and returns,
            the loss + this times KL(base || model) of their probabilities, where the loss counts; `evaluate` has none.
        proximal: FedProx's term in the step, proximal / 2 times the squared distance of the trained weights from where
            a federated round began (from the build outside of rounds), kept beside them as slots; the server may set
            another mu in each round. It is not in the loss that a step returns. None: no term.
        row_clipping: each row's gradient is scaled down to this L2 norm over all trained tensors, before the mean over
            rows is taken: no row moves a step by more. None: any norm.
        row_losses: `on`: a step gives the loss of each row beside their mean, which `fit(..., skip=)` goes by; `off`:
            their mean alone.
        inputs: for a module, and for a Keras model that leaves axes open, shape and dtype of each input: a list of
            `jax.ShapeDtypeStruct` or arrays, for PyTorch a tuple or dict of tensors; the first axis is the batch.
        classes: of a `.tflite` file: a fresh dense layer of so many classes for its last one, or after `cut`. Of any
            model "10+20": its own ten, and room for up to twenty that `session.add_class` adds at run time; those that
            there are not yet have no share in softmax, loss and metrics.
        head: `class_means`: `session.set_class_means` sets the last layer, without a gradient, to that which finds the
            class with the nearest mean. Needs an `update` that trains that layer alone; adds the signature `features`.
        head_reads: what the last layer reads beside its own input, by weights that begin at 0: `blocks`, the mean of
            what each block of the model reads; `blocks/2`, of each of 2 x 2 parts of a picture, or 2 of a series;
            `blocks:4`, of the last four blocks (Head2Toe, arXiv 2201.03529).
        cut: of a `.tflite` file: the name of a tensor or layer; what stands after it is left out.
        outputs: of a `.tflite` file or a PyTorch model: names of the outputs that are kept; None: all.
        length: of a language model: tokens of a row, 256 where nobody says; shorter texts are padded on the right.
            Several, (64, 256): the signatures that take rows are there for each, with the same weights and state, and
            what is passed takes the fewest tokens that hold it.
        name: what the program is called, for the app; None: as the model is.

    Raises:
        UsageError: a field has no such value, or two do not go together.
    """

    loss: Any = option(
        None,
        "A name, or package.module:function (outputs, y) -> loss per example.",
        entry=Any,
        shown="what a Keras model was compiled with, else sparse_categorical_crossentropy",
    )
    optimizer: Any = option(
        None,
        "A name, or package.module:factory of an optax transformation.",
        entry=Any,
        shown="what a Keras model was compiled with, else adam for a file (.tflite, .gguf) and sgd for other models",
    )
    update: str | Mapping[str, Any] | UpdateScheme = option(
        "full",
        "full, head, last-3, bias-only, sparse, lora-16, lora-16:q_proj,v_proj, dora-16, skip-lora-8, skip-lora-8/2, "
        "channels-10, or a TOML or JSON file of rules.",
        entry=Any,
    )
    batch: int = option(8, "Rows of one training step.", entry=int, in_manifest=True)
    micro_batch: int | None = option(
        None,
        "Rows computed at once; the gradients of a step's micro-batches are added up.",
        entry=int,
        shown="the whole batch",
    )
    target: str | Target = option(
        "litert-2",
        "Runtime and processor to tune for: litert-2, litert-2/x86-64, gpu, web, hexagon, tflm, gpu,litert-2, "
        "or a table of your own: mine.toml.",
        entry=str,
    )
    state: str | None = option(
        None,
        "variables: the runtime keeps the weights. stateless: they go in and out. split: so too, and gradients "
        "and update are signatures of their own, for accelerators that round to float16.",
        entry=str,
        choices=("variables", "stateless", "split"),
        shown="what the target takes",
    )
    y: Any = option(
        None,
        "Type of one example's y for your own loss: int32, float32[10].",
        entry=str | dict[str, str],
        shown="like the output",
    )
    signatures: Sequence[str] = option(
        ("train", "evaluate", "infer"),
        "What the program offers: train,evaluate,infer, features and generate, separated by commas.",
        entry=tuple[str, ...],
        shown="train,evaluate,infer",
    )
    labels: Sequence[str] | None = option(None, in_manifest=True)
    preprocessing: Mapping[str, Any] | None = option(None, in_manifest=True)
    card: Mapping[str, str] | None = option(None, entry=dict[str, str], in_manifest=True)
    frozen: str = option(
        "float32",
        "float32; int8 for frozen layers where the target gains by it, which needs --calibration; int4 for the weights "
        "of frozen dense layers and embeddings, an eighth of the memory; int4-blockwise: a scale for each 32; "
        "int4-dynamic: quicker, rounds what they read to int8; float16: all frozen weights in half their bytes.",
        entry=str,
        choices=("float32", "int8", *INT4_BLOCKS, "float16"),
        in_manifest=True,
    )
    train_as: str = option(
        "float32",
        "int8: weights that train are kept as integers of eight bits, a quarter of the state. For an optimizer without "
        "slots, as sgd.",
        entry=str,
        choices=("float32", "int8"),
    )
    calibration: Any = option(
        None,
        "An .npz file of samples for int8, or to measure int4 and float16: x or the inputs by name, and y if there are "
        "labels.",
        entry=str,
    )
    memory_budget: str | int | None = option(
        None,
        "Memory that a session may take, as 64MiB: chooses the largest micro-batch that fits.",
        entry=str,
        shown="no limit",
    )
    blocks: str = option(
        "auto",
        "on: of a step one block of the model at a time is in memory, its forward pass computed twice. auto: where the "
        "memory budget needs it. off: never.",
        entry=str,
        choices=("auto", "on", "off"),
    )
    batch_norm: str = option(
        "fixed",
        "train: batch normalization that is not frozen takes the batch's statistics. fixed: the learned ones.",
        entry=str,
        choices=("fixed", "train"),
    )
    dropout: str = option(
        "off",
        "train: dropout layers drop in a step. off: they do not.",
        entry=str,
        choices=("off", "train"),
    )
    augment: Any = option(
        None,
        "package.module:function (x, key) -> x that a step applies to its inputs; keras: its random layers.",
        entry=str,
        shown="nothing",
    )
    preprocess: Any = option(
        None,
        "Takes uint8 images in NHWC, and makes of them what the model takes: 0..1, -1..1, 0..255, imagenet.",
        entry=str | dict[str, Any],
        shown="the model's own inputs",
    )
    check: bool = option(True)
    loss_weights: Any = option(None, entry=dict[str, float])
    loss_scale: float = option(
        1.0,
        "For split, a power of two: gradients are multiplied by it, and the update divides by it.",
        entry=float,
        shown="1",
        in_manifest=True,
    )
    keep_base: float = option(
        0.0,
        "Weight of a penalty for answers unlike the base's own, which keeps what it knew: for example 0.1.",
        entry=float,
        shown="0: none",
        in_manifest=True,
    )
    proximal: float | None = option(
        None,
        "Mu of FedProx's term, which holds weights near those that a federated round began with: for example 0.01.",
        entry=float,
        shown="no such term",
    )
    row_clipping: float | None = option(
        None,
        "The largest L2 norm of a row's gradient: larger ones are scaled down before the mean is taken.",
        entry=float,
        shown="any norm",
        in_manifest=True,
    )
    row_losses: str = option(
        "off",
        "on: a step gives the loss of each row, by which `fit` can skip rows that are learned. off: their mean alone.",
        entry=str,
        choices=("off", "on"),
    )
    inputs: Sequence[Any] | None = option(None)
    classes: int | str | None = option(
        None,
        "Of a .tflite file: a fresh last layer of so many classes. Of any model, 10+20: its own ten, and room for up "
        "to twenty that are added at run time.",
        entry=int | str,
        shown="the model's own",
    )
    head: str | None = option(
        None,
        "class_means: a session sets the last layer to the means of samples, without a gradient.",
        entry=str,
        choices=("class_means",),
        shown="trained by steps alone",
    )
    head_reads: str | None = option(
        None,
        "What the last layer reads beside its own input, by weights that begin at 0: blocks, the mean of what each "
        "block reads; blocks/2, of each of 2 x 2 parts of a picture; blocks:4, of the last four.",
        entry=str,
        shown="its own input alone",
    )
    cut: str | None = option(
        None,
        "Of a .tflite file: a tensor or layer; what stands behind it is left out.",
        entry=str,
        shown="nothing is left out",
    )
    outputs: Sequence[str] | None = option(
        None, "Names of the outputs that are kept, separated by commas.", entry=tuple[str, ...], shown="all"
    )
    length: int | Sequence[int] | None = option(
        None,
        "Of a .gguf file: tokens of a row. Several, 64,256: each step takes the fewest that hold its texts.",
        entry=int | tuple[int, ...],
        shown="256",
    )
    name: str | None = option(None, "What the program is called.", entry=str, shown="as the model is")

    def __post_init__(self) -> None:
        for one in fields(self):
            known, value = one.metadata["choices"], getattr(self, one.name)
            if known and value not in known and (value is not None or one.default is not None):
                raise UsageError(f"unknown {one.name} {value!r}: it is {' or '.join(known)}", page="arguments")
        if self.head == "class_means" and "features" not in self.signatures:
            object.__setattr__(self, "signatures", (*self.signatures, "features"))
        check_signatures(self.signatures)
        if self.frozen == "float32" and self.calibration is not None:
            raise UsageError(
                "calibration is for frozen layers in int8, int4 or float16: add frozen='int8' (--frozen int8), or "
                "leave the samples out",
                page="arguments",
            )
        if self.name is not None and not (isinstance(self.name, str) and self.name.strip()):
            raise UsageError(f"name must be a text, not {self.name!r}", page="arguments")
        for name in ("labels", "outputs"):
            check_names(name, getattr(self, name))
        check_card(self.card)
        check_preprocessing(self.preprocessing)
        check_writable("labels", None if self.labels is None else list(self.labels))
        for name in ("name", "card", "preprocessing"):
            check_writable(name, getattr(self, name))
        check_loss_scale(self.loss_scale)
        check_keep_base(self.keep_base)
        check_proximal(self.proximal)
        check_row_clipping(self.row_clipping)

    def asked(self) -> dict[str, Any]:
        """Return by name what is not left to the default."""
        given = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {
            name: value
            for name, (value, default) in given.items()
            if value is not default and not (isinstance(value, str | int | float | tuple) and value == default)
        }

    @property
    def is_int4(self) -> bool:
        """Whether frozen matrices are integers of four bits."""
        return self.frozen in INT4_BLOCKS

    @property
    def recomputes(self) -> Sequence[bool]:
        """Whether the backward pass may compute the forward pass again, in the order in which that is tried."""
        return {"auto": (False, True), "on": (True,), "off": (False,)}[self.blocks]

    def in_manifest(self) -> dict[str, Any]:
        """Return by name what the file says of them, as JSON."""
        said = {one.name: getattr(self, one.name) for one in fields(self) if one.metadata["in_manifest"]}
        return said | {
            "labels": None if self.labels is None else list(self.labels),
            "preprocessing": None if self.preprocessing is None else dict(self.preprocessing),
            "card": dict(self.card or {}),
            "loss_scale": float(self.loss_scale),
            "keep_base": float(self.keep_base),
            "row_clipping": None if self.row_clipping is None else float(self.row_clipping),
        }


def declared() -> dict[str, Field[Any]]:
    """Return all options by name."""
    return {one.name: one for one in fields(Options)}
