"""Programs for the Kotlin tests, with what the host's runtime makes of them.

    .venv/bin/python android_app/test_programs.py OUT

Writes OUT/<model>-<export>.tflite, and OUT/<model>-lean.tflite with the fewest signatures; beside each model its data
(x, y, weight; `two`, which has two outputs, also size), the losses of 50 steps, the state after them, the initial
output on the first rows, all as raw little-endian numbers, a state file written by `TrainingSession.save` and the plain
model with it. <model>-split.losses and .state are those of the program whose steps are split, on the same data;
OUT/noisy-split, on that of `mlp`, adds noise to its inputs, so that the forward pass changes a counter, and scales its
gradients. cnn-<export> infers 1 and 5 rows by signatures of their own. A step of <model>-by-<n> is made of
micro-batches of n rows. OUT/mixing.tflite alone is of a model whose rows influence each other, OUT/adapted.tflite of
one with adapters, OUT/masked.tflite of a loss that leaves labels out. OUT/wide.float16 and OUT/wide.dynamic are plain
models with smaller weights, of a model that gives wide.output for wide.x.
OUT/mlp.fit holds the losses of two epochs of `fit` with mlp-lean, in the order of the seed 5.
OUT/unit.tflite was built with a learning rate of 1, OUT/fading.tflite with a schedule that comes to 0 after 3 steps.
OUT/trains-only.tflite infers nothing. OUT/rooted-<export>.tflite have a root whose slope is infinite at 0.
OUT/docs.tflite is the program of docs/android.md, OUT/docs-web.tflite that of docs/web.md: 8 numbers, 3 classes.
OUT/docs-language.tflite is the language model of docs/web.md.
OUT/chosen-<export>.tflite trains some channels of a weight of `mlp`; OUT/chosen.channels are those that the host takes
by the data of `mlp`, OUT/chosen.losses and OUT/chosen.state of 50 steps with them. OUT/beyond.state is of the same
program and names a channel that there is not.
OUT/classes.tflite has room for two classes more than those of `mlp`; OUT/classes.output is what it infers of the first
rows of `mlp` and of what is as far on the other side of 0, of which a class was made; OUT/classes.state has its name.
OUT/heads.tflite and OUT/twins.tflite are of several heads; OUT/heads.output is what one of them, trained, infers of the
first rows of `mlp`, OUT/heads.plain what is exported of it (heads_programs.py).
OUT/camera-<type>.tflite are of files that are fed integers, of which the convolution stays; in OUT/camera-deeper.tflite
all trains.
OUT/blocks-<weights>.tflite are of a small language model that reads the pictures of `mlp` as rows of words and gives
the next one: adapters of frozen weights (int4, int4-blockwise, float32), a step in blocks.
OUT/lengths.tflite and OUT/lengths-stateless.tflite are of a language model, for rows of 4, 8 and 12 tokens, the latter
with micro-batches; OUT/texts.x and OUT/texts.y are texts that end anywhere in a row.
OUT/generation-<export>.tflite write texts on; OUT/generation.json has prompts, the first `sizes` ids of `rows`, and
what the host writes behind each before and after 8 steps on the first row, with its logits of the next token; then
what is drawn behind the first by java.util.Random.
OUT/kept.tflite and OUT/kept-by-2.tflite keep features of several tensors (Skip-LoRA), the latter with micro-batches.
OUT/int8.tflite, and OUT/int8-by-2.tflite with micro-batches, keep weights in int8; OUT/int8.plain is exported of
OUT/trace-weights-in-int8.state.
OUT/redrawn.tflite and OUT/redrawn-by-2.tflite redraw channels, OUT/redrawn.channels are a draw (redrawn_programs.py).
OUT/redrawn-filed.tflite is of an app's own file, OUT/redrawn-filed.plain that file with OUT/redrawn-filed.state.
OUT/losses.tflite, OUT/losses-by-2.tflite with micro-batches and OUT/losses-kept.tflite with features give row losses.
OUT/rows.tflite is of a model whose export is hard to resize, OUT/rows.output what JAX makes of OUT/rows.x with the
weights of OUT/rows.state (rows_programs.py).
OUT/traces.json and OUT/trace-<name>.state are trainings that the host has done (recorded_traces.py).
OUT/board.tflite is of a microcontroller, OUT/board.state of a board that ran it (board_programs.py).
OUT/interchange.json lists programs and states (interchange_programs.py), and what the host makes of each pair.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import converter
from converter.program.file import read_program
from converter.runtime import Event, Step, TrainingSession
from converter.runtime.state.interchange import StateSpec
from converter.runtime.state.saved import save_state
from converter.training.losses import named_loss
from jax_frontend import Model

# Beside this file, which is run as a script.
from board_programs import write_board  # isort: skip
from camera_file import camera_file  # isort: skip
from class_programs import write_classes  # isort: skip
from heads_programs import write_heads, write_learned_head  # isort: skip
from interchange_programs import write_interchange  # isort: skip
from language_programs import write_generation, write_lengths  # isort: skip
from models import CLASSES, cnn, decoder, mixing, model  # isort: skip
from recorded_traces import write_traces  # isort: skip
from redrawn_programs import write_redrawn  # isort: skip
from rows_programs import write_rows  # isort: skip

BATCH, STEPS = 8, 50
RATE = 0.02
#: The last step is of 5 rows.
ROWS = BATCH * STEPS - 3
#: What to build, and the rows of one call.
MODELS = {"mlp": BATCH, "cnn": BATCH, "mlp-by-2": 2, "cnn-by-4": 4, "two": BATCH}


def write_wide(out: Path) -> None:
    """Return plain models with smaller weights, rows, and what the model gives for them."""
    rng = np.random.default_rng(0)
    params = {"conv": rng.standard_normal((3, 3, 16, 32)), "w": rng.standard_normal((288, 40)), "b": np.zeros(40)}
    params = {
        name: jnp.asarray(array / np.sqrt(array.size // array.shape[-1]), "float32") for name, array in params.items()
    }
    params |= {"scale": jnp.ones(32), "shift": jnp.zeros(32)}
    source = Model(cnn, params, [jax.ShapeDtypeStruct((1, 6, 6, 16), "float32")])
    program = converter.build(source, batch=BATCH, target="tflite-2.16")
    x = rng.standard_normal((BATCH, 6, 6, 16)).astype(np.float32)
    x.tofile(out / "wide.x")
    np.asarray(cnn(params, x)).tofile(out / "wide.output")
    for quantize in ("float16", "dynamic"):
        program.export_inference(out / f"wide.{quantize}", quantize=quantize)
    write_filed(out, x)


def write_filed(out: Path, x: np.ndarray) -> None:
    """Make a program of a `.tflite` file with float16 weights, of which a half trains, and what is exported of it."""
    shipped = out / "shipped.tflite"
    shipped.write_bytes((out / "wide.float16").read_bytes())
    options = {
        "loss": "sparse_categorical_crossentropy",
        "state": "stateless",
        "signatures": ("train", "evaluate", "infer"),
    }
    update = {"*/bias": 1, "w/kernel": 0.5}
    program = converter.build(shipped, update=update, batch=BATCH, target="tflite-2.16", **options)
    program.write(out / "filed-stateless.tflite")
    with TrainingSession(program.data) as session:
        session.train(x, np.arange(BATCH, dtype=np.int32) % CLASSES, RATE)
        (out / "filed.state").unlink(missing_ok=True)
        session.save(out / "filed.state")
        program.export_inference(out / "filed.plain", session.state())


def write_camera(out: Path) -> None:
    """Make programs of files that are fed integers, OUT/camera-<type>.tflite, and pictures; one trains all layers."""
    rng = np.random.default_rng(0)
    x, y, weight = data(rng)
    pictures = np.clip(np.rint(128 * x), 0, 255).astype(np.uint8)
    options = {"classes": CLASSES, "batch": BATCH, "target": "tflite-2.16", "optimizer": optax.sgd(0.01)}
    for fed in ("uint8", "int8"):
        file = out / f"{fed}.tflite"
        file.write_bytes(camera_file(fed))
        converter.build(file, update="head", state="stateless", **options).write(out / f"camera-{fed}.tflite")
        (pictures if fed == "uint8" else (pictures ^ 128).view(np.int8)).tofile(out / f"camera-{fed}.x")
        y.tofile(out / f"camera-{fed}.y")
        weight.tofile(out / f"camera-{fed}.weight")
    converter.build(out / "uint8.tflite", update="full", **options).write(out / "camera-deeper.tflite")


def write_blocks(out: Path) -> None:
    """Make programs with adapters of frozen weights of four bits, and of float32, whose steps go block by block."""
    source = decoder()
    # Of gradients that are nearly nothing, as those of A are while B is, Adam would make steps by their last bits.
    options = {"optimizer": optax.adam(0.01, eps=1e-3), "batch": BATCH, "blocks": "on"}
    options |= {"update": {"layers/*": converter.LoRA(4, 8)}, "signatures": ("train", "infer")}
    for frozen in ("float32", "int4", "int4-blockwise"):
        on = "tflite-2.16" if frozen == "float32" else "litert-2"
        program = converter.build(source, frozen=frozen, target=on, **options)
        program.write(out / f"blocks-{frozen}.tflite")


def data(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noisy pictures of four kinds, their labels, and how much each counts."""
    y = rng.integers(0, CLASSES, ROWS).astype(np.int32)
    kinds = rng.random((CLASSES, 6, 6, 1)).astype(np.float32)
    x = kinds[y] + 0.5 * rng.standard_normal((ROWS, 6, 6, 1))
    return x.astype(np.float32), y, rng.choice(np.float32([0.5, 1, 1.7]), ROWS)


def write(out: Path, name: str, seed: int) -> None:
    """Make all files of one model."""
    rng = np.random.default_rng(seed)
    x, y, weight = data(rng)
    source = model(name, rng)
    options = {"update": "full", "batch": BATCH, "micro_batch": MODELS[name], "target": "tflite-2.16"}
    targets: dict[str, np.ndarray] = {"y": y}
    if name == "two":
        targets = {"kind": y, "size": rng.standard_normal((ROWS, 2)).astype(np.float32)}
        targets["size"].tofile(out / "two.size")
        options |= {"loss": {"kind": "sparse_categorical_crossentropy", "size": "mse"}, "loss_weights": {"size": 0.5}}
    few = ("infer_1", "infer_5") if name == "cnn" else ()
    for state in ("split", "stateless", "variables"):
        offered = ("train", "evaluate", "infer", *few)
        program = converter.build(source, optimizer=optax.adam(0.1), state=state, signatures=offered, **options)
        program.write(out / f"{name}-{state}.tflite")
    write_steps(out / f"{name}-split.tflite", out / f"{name}-split", x, targets, weight)
    write_steps(out / f"{name}-variables.tflite", out / name, x, targets, weight)
    program.export_inference(out / f"{name}.plain", out / f"{name}.state")
    # What an app needs at least.
    lean = converter.build(source, optimizer=optax.sgd(0.02), signatures=("train", "infer"), **options)
    lean.write(out / f"{name}-lean.tflite")
    with TrainingSession(out / f"{name}-variables.tflite") as session:
        outputs = [array.reshape(-1) for array in jax.tree.leaves(session.infer(x[:BATCH]))]
        np.concatenate(outputs).tofile(out / f"{name}.output")
        session.restore(out / f"{name}.state")
        trained = np.concatenate([array.reshape(-1) for array in session.state().values()])
    for kind, array in (
        ("x", x),
        ("y", y),
        ("weight", weight),
        ("trained", np.asarray(trained, np.float32)),
    ):
        array.tofile(out / f"{name}.{kind}")


def write_steps(program: Path, to: Path, x: np.ndarray, targets: dict[str, np.ndarray], weight: np.ndarray) -> None:
    """Return what the host makes of a program: `to`.losses of its steps and `to`.state after them."""
    with TrainingSession(program) as session:
        steps = (slice(start, start + BATCH) for start in range(0, ROWS, BATCH))
        losses = [session.train(x[r], {n: a[r] for n, a in targets.items()}, RATE, weight[r]) for r in steps]
        state = to.parent / f"{to.name}.state"
        state.unlink(missing_ok=True)
        session.save(state)
    np.asarray(losses, np.float32).tofile(to.parent / f"{to.name}.losses")


def write_fit(out: Path) -> None:
    """OUT/mlp.fit: the losses of the host's `fit` over two epochs in the order of a seed, on the data of `mlp`."""
    losses: list[float] = []
    x = np.fromfile(out / "mlp.x", np.float32).reshape(ROWS, 6, 6, 1)
    y, weight = np.fromfile(out / "mlp.y", np.int32), np.fromfile(out / "mlp.weight", np.float32)

    def note(event: Event) -> None:
        if isinstance(event, Step):
            losses.append(event.loss)

    with TrainingSession(out / "mlp-lean.tflite") as session:
        session.fit(x, y, epochs=2, seed=5, weight=weight, listener=note, progress=False)
    np.asarray(losses, np.float32).tofile(out / "mlp.fit")


def write_noisy(out: Path) -> None:
    """Make a split program whose forward pass changes state of its own, on the data of `mlp`."""
    rng = np.random.default_rng(0)
    x, y, weight = data(rng)

    def noisy(x: jax.Array, key: jax.Array) -> jax.Array:
        return x + 0.1 * jax.random.uniform(key, x.shape)

    program = converter.build(
        model("mlp", rng),
        optimizer="adam",
        batch=BATCH,
        micro_batch=2,
        target="tflite-2.16",
        state="split",
        augment=noisy,
        loss_scale=4.0,
    )
    program.write(out / "noisy-split.tflite")
    write_steps(out / "noisy-split.tflite", out / "noisy-split", x, {"y": y}, weight)


def write_chosen(out: Path) -> None:
    """Make a program with chosen channels, and what the host chooses and trains on the data of `mlp`."""
    rng = np.random.default_rng(0)
    x, y, weight = data(rng)
    update = {"a/w": converter.Channels(0.3), "a/b": 1, "b/*": 1}
    options = {"update": update, "batch": BATCH, "target": "tflite-2.16", "signatures": ("train", "infer", "fisher")}
    source = model("mlp", rng)
    for state in ("variables", "stateless"):
        converter.build(source, optimizer="adam", state=state, **options).write(out / f"chosen-{state}.tflite")
    with TrainingSession(out / "chosen-variables.tflite") as session:
        session.choose_channels(x, y, weight)["a/w"].tofile(out / "chosen.channels")
        steps = (slice(start, start + BATCH) for start in range(0, ROWS, BATCH))
        losses = [session.train(x[r], y[r], RATE, weight[r]) for r in steps]
        (out / "chosen.state").unlink(missing_ok=True)
        session.save(out / "chosen.state")
        beyond = session.state() | {"a/w/channels": np.arange(26, 37, dtype=np.int32)}
        (out / "beyond.state").unlink(missing_ok=True)
        save_state(out / "beyond.state", StateSpec.of(read_program(out / "chosen-variables.tflite")), beyond)
    np.asarray(losses, np.float32).tofile(out / "chosen.losses")


def write_docs(out: Path) -> None:
    """Make the programs that the documentation's blocks of code train."""
    rng = np.random.default_rng(0)
    w = [jnp.asarray(rng.standard_normal(shape) / 3, "float32") for shape in ((8, 16), (16, 3))]

    def apply(params: list[jax.Array], x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params[0]) @ params[1]

    source = Model(apply, w, [jax.ShapeDtypeStruct((1, 8), "float32")])
    for name, target in (("docs", "tflite-2.16"), ("docs-web", "litert-2")):
        converter.build(source, optimizer="sgd", batch=BATCH, target=target).write(out / f"{name}.tflite")


def write_rooted(out: Path, state: str) -> None:
    """Make a program that can make its weights NaN behind a finite loss."""
    source = model("mlp", np.random.default_rng(0))

    def apply(params: object, x: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.maximum(source.apply(params, x), 0.0))

    rooted = Model(apply, source.params, source.inputs)
    options = {"batch": BATCH, "target": "tflite-2.16", "optimizer": "sgd", "check": False}
    converter.build(rooted, state=state, **options).write(out / f"rooted-{state}.tflite")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(MODELS):
        write(folder, each, number)
    write_fit(folder)
    write_noisy(folder)
    write_wide(folder)
    write_chosen(folder)
    write_classes(folder, BATCH)
    write_heads(folder, BATCH)
    write_interchange(folder)
    write_board(folder)
    write_camera(folder)
    write_rows(folder, BATCH)
    write_redrawn(folder, BATCH)
    write_blocks(folder)
    write_lengths(folder)
    write_generation(folder)
    write_docs(folder)
    of_rows = model("mlp", np.random.default_rng(0))
    whole = Model(mixing, of_rows.params, of_rows.inputs)
    options = {"batch": BATCH, "state": "stateless", "target": "tflite-2.16"}
    converter.build(whole, **options).write(folder / "mixing.tflite")
    labelled = named_loss("sparse_categorical_crossentropy", ignore=0)
    converter.build(of_rows, loss=labelled, **options).write(folder / "masked.tflite")
    converter.build(of_rows, optimizer=optax.sgd(1.0), **options).write(folder / "unit.tflite")
    fading = optax.sgd(optax.linear_schedule(0.02, 0.0, 3))
    converter.build(of_rows, optimizer=fading, **options).write(folder / "fading.tflite")
    converter.build(of_rows, update={"a/w": converter.LoRA(2)}, **options).write(folder / "adapted.tflite")
    kept = {"update": "skip-lora-2", "signatures": ("train", "evaluate", "infer", "features")}
    converter.build(of_rows, **kept, **options).write(folder / "kept.tflite")
    parts = {"batch": BATCH, "micro_batch": 2, "optimizer": "adam"}
    once = {"update": "head", "signatures": ("features", "train_features", "evaluate_features", "infer_features")}
    converter.build(of_rows, **once, **options).write(folder / "once.tflite")
    converter.build(of_rows, **once, **parts).write(folder / "once-by-2.tflite")
    converter.build(of_rows, **kept, **parts).write(folder / "kept-by-2.tflite")
    by_row = {**options, "optimizer": "adam", "row_losses": "on"}
    converter.build(of_rows, **by_row | {"state": "variables"}).write(folder / "losses.tflite")
    converter.build(of_rows, micro_batch=2, **by_row).write(folder / "losses-by-2.tflite")
    converter.build(of_rows, **by_row, **kept | {"update": "head"}).write(folder / "losses-kept.tflite")
    converter.build(of_rows, batch=BATCH, signatures=("train",)).write(folder / "trains-only.tflite")
    for state in ("variables", "stateless"):
        write_rooted(folder, state)
    whole = {"train_as": "int8", "optimizer": "sgd", "batch": BATCH, "target": "tflite-2.16"}
    of_integers = converter.build(model("cnn", np.random.default_rng(0)), **whole)
    of_integers.write(folder / "int8.tflite")
    converter.build(of_rows, micro_batch=2, **whole).write(folder / "int8-by-2.tflite")
    write_traces(folder)
    write_learned_head(folder)
    of_integers.export_inference(folder / "int8.plain", folder / "trace-weights-in-int8.state")
