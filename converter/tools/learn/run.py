"""Learning from examples: build, evaluate, train with checkpoints, evaluate again, and export an adapter."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.driver.build import build
from converter.runtime import TrainingSession, rows_of_texts
from converter.runtime.export import export_adapter
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.words import counted
from converter.tools.learn.asking import Asker
from converter.tools.learn.examples import Example, as_tokens, read_examples
from converter.tools.learn.plan import Learned, Plan
from converter.tools.learn.work import Work

if TYPE_CHECKING:
    from converter.frontends.decoder import Tokenizer

#: The model's own answers to these are rehearsed between the examples, so that it does not forget others.
REHEARSED = (
    "What is the capital of France?",
    "What is two plus three?",
    "What color is the sky?",
    "Who wrote Hamlet?",
    "What is water?",
    "What is the opposite of hot?",
)
#: What decides of a training besides its files.
_DECIDES = ("epochs", "learning_rate", "update", "frozen", "rehearse", "keep_base", "asked", "asks", "seed")
#: Tokens of a row without --length, at most: longer rows take much memory and are to be asked for.
_MOST_TOKENS = 512
#: Bytes of a file for each weight, about, and a little more.
_BYTES = {"float32": 4.2, "float16": 2.2, "int8": 4.2}
_BYTES_OF_FOUR_BITS = 0.8


def learn(
    base: str | os.PathLike,
    examples: str | os.PathLike,
    out: str | os.PathLike = "adapter",
    say: Callable[[str], None] = lambda text: None,
    *,
    held_out: str | os.PathLike | None = None,
    length: int | None = None,
    epochs: int = 3,
    learning_rate: float = 2e-4,
    update: str | Mapping[str, Any] = "lora-8:all-linear",
    frozen: str = "int4-blockwise",
    rehearse: bool = True,
    keep_base: float = 0.0,
    asked: int = 3,
    asks: Sequence[str] = (),
    every: float = 120.0,
    seed: int = 0,
) -> Learned:
    """Teach a language model examples, and write the adapter.

    A run that was killed goes on after its last checkpoint when it is asked for again, in the folder `<out>.learning`.

    Args:
        base: a `.gguf` file or a folder of `transformers`.
        examples: a `.jsonl` file, a line for each: `{"messages": [...]}`, `{"prompt": "...", "answer": "..."}`, or
            `{"text": "..."}`.
        out: where the adapter goes: a folder for PEFT, or a `.gguf` file for llama.cpp.
        say: told of progress, a line at a time.
        held_out: a file of other examples to judge by; None: every tenth of the examples, of fewer than five all.
        length: tokens of a row; None: as many as the longest example has, 512 at most.
        epochs: how often each example is seen.
        learning_rate: of the first step; it falls to a tenth in a line.
        update: which weights have adapters: a name of a scheme, or rules of `LoRA`.
        frozen: what the others are stored as.
        rehearse: whether the model's own answers to a few general questions are learned between the examples.
        keep_base: weight of a penalty for answers unlike the base's own, as of `pocketune.build`; 0: none.
        asked: how many of the held-out questions are answered before and after.
        asks: other questions that are answered before and after and not taught: what it knew should stay.
        every: seconds between checkpoints.
        seed: of the order.

    Returns:
        Perplexity and answers before and after, the number of steps, and where program and state are.

    Raises:
        UsageError: something that is needed is missing, lines of a file are no examples, or nothing can be written.
    """
    plan = Plan(
        base=Path(base),
        examples=Path(examples),
        out=Path(out),
        held_out=None if held_out is None else Path(held_out),
        length=length,
        epochs=epochs,
        learning_rate=learning_rate,
        update=update,
        frozen=frozen,
        rehearse=rehearse,
        keep_base=keep_base,
        asked=asked,
        asks=tuple(asks),
        every=every,
        seed=seed,
    )
    return _learned(plan, say)


def _learned(plan: Plan, say: Callable[[str], None]) -> Learned:
    _check_out(plan)
    require("gguf", "a language model")
    require("text", "a tokenizer")
    from converter.frontends.decoder import Model, Tokenizer

    examples = read_examples(plan.examples)
    others = [] if plan.held_out is None else read_examples(plan.held_out)
    tokenizer = Tokenizer(plan.base)
    taught, judged = _split(plan, examples, others)
    told = [as_tokens(plan.examples, taught, tokenizer), as_tokens(plan.held_out or plan.examples, judged, tokenizer)]
    sizes = zip([*told[0], *told[1]], [*taught, *judged], strict=True)
    longest = max((len(one.ids) - 1, example.line) for one, example in sizes)
    length = plan.length or max(min(longest[0], _MOST_TOKENS), 32)
    if longest[0] > length:
        raise UsageError(
            f"the example in line {longest[1]} has {longest[0]} tokens and a row {length}: --length {longest[0]} takes "
            "it and more memory and time, or cut it into several",
            page="language-models",
        )
    model = Model(plan.base, length=length)
    if plan.out.suffix and model.names_in_gguf() is None:
        raise UsageError(
            f"llama.cpp has no models of the architecture {model.configuration.architecture.name}: name a folder for "
            "--out, which PEFT reads",
            page="language-models",
        )
    work = _prepared(plan, model, length)
    _build(plan, model, work, say)
    with TrainingSession(work.program) as session:
        return _taught(plan, session, tokenizer, work, (taught, judged), told, length, say)


def _check_out(plan: Plan) -> None:
    """Raise UsageError where no adapter can become of what is asked for, as far as that is known before the model."""
    if plan.out.suffix not in ("", ".gguf"):
        raise UsageError(
            f"the adapter is a folder for PEFT, or a .gguf file for llama.cpp, and --out is {plan.out}",
            page="command-line",
        )
    if not plan.out.suffix:
        require("safetensors", "an adapter of PEFT")
    elif _has_lengths(plan.update):
        raise UsageError(
            f"{_named(plan.update)} trains lengths of columns, which have no place in a .gguf: take lora- in place of "
            "dora-, or a folder for --out",
            page="adapters",
        )


def _has_lengths(update: str | Mapping[str, Any]) -> bool:
    """Return whether a scheme is of DoRA."""
    from converter.training.schemes import update_scheme

    return any(getattr(adapter, "dora", False) for adapter in update_scheme(update).adapters)


def _named(update: str | Mapping[str, Any]) -> str:
    """Return a scheme in words."""
    return update if isinstance(update, str) else counted(len(update), "rule")


def _split(plan: Plan, examples: list[Example], others: list[Example]) -> tuple[list[Example], list[Example]]:
    """Return the examples to learn and those to judge by."""
    if others:
        return examples, others
    if len(examples) < 5:
        return examples, examples  # too few to leave one out; said in the figures
    chosen = set(np.random.default_rng(plan.seed).permutation(len(examples))[: max(1, len(examples) // 10)].tolist())
    return [e for i, e in enumerate(examples) if i not in chosen], [e for i, e in enumerate(examples) if i in chosen]


def _prepared(plan: Plan, model: Any, length: int) -> Work:
    """Return the work folder, after a look at whether all will go where it is to go."""
    parent = plan.out.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {plan.out}: {error.strerror}", page="command-line") from error
    if not os.access(parent, os.W_OK) or (plan.out.exists() and not os.access(plan.out, os.W_OK)):
        raise UsageError(f"cannot write {plan.out}: it may not be written to", page="command-line")
    if plan.out.exists() and plan.out.is_dir() == bool(plan.out.suffix):
        there, wanted = ("folder", "a file") if plan.out.suffix else ("file", "a folder")
        raise UsageError(
            f"cannot write {plan.out}: a {there} is there, and the adapter is {wanted}: name another --out",
            page="command-line",
        )
    work = Work(plan.out.with_name(f"{plan.out.name}.learning"), _request(plan, length))
    weights = sum(math.prod(tensor.shape) for tensor in model.parameters().values())
    needed = int(weights * _BYTES.get(plan.frozen, _BYTES_OF_FOUR_BITS)) + (64 << 20)
    free = shutil.disk_usage(work.folder).free
    if not work.program.exists() and free < needed:
        raise UsageError(
            f"{work.folder} has {free >> 20} MiB left, and the program and its checkpoints take about {needed >> 20}: "
            "make room, or name an --out on another disk",
            page="command-line",
        )
    return work


def _request(plan: Plan, length: int) -> dict[str, Any]:
    """Return what decides of a training, for a folder that goes on."""
    read = {"examples": plan.examples, "held_out": plan.held_out}
    files = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in read.items() if path}
    stat, said = plan.base.stat(), {name: value for name, value in asdict(plan).items() if name in _DECIDES}
    return {**said, **files, "base": [plan.base.name, stat.st_size, stat.st_mtime_ns], "length": length}


def _build(plan: Plan, model: Any, work: Work, say: Callable[[str], None]) -> None:
    """Build the program, where no earlier run did."""
    if work.program.exists():
        say(f"{work.program} is built already")
        return
    say(
        f"building {plan.base.name}: {_named(plan.update)}, the rest in {plan.frozen}; a few minutes for half a "
        "billion weights"
    )
    began = time.perf_counter()
    built = build(
        model,
        batch=1,
        update=plan.update,
        frozen=plan.frozen,
        blocks="on",
        optimizer="adam",
        keep_base=plan.keep_base,
        signatures=("train", "evaluate", "generate"),
        check=False,
    )
    built.write(work.program)
    say(f"built in {time.perf_counter() - began:.0f} s: {work.program.stat().st_size / 1e6:.0f} MB")


def _taught(
    plan: Plan,
    session: TrainingSession,
    tokenizer: Tokenizer,
    work: Work,
    examples: tuple[list[Example], list[Example]],
    told: list[list[Any]],
    length: int,
    say: Callable[[str], None],
) -> Learned:
    """Judge, train, judge again and write the adapter, each where an earlier run has not."""
    rows, judged = (rows_of_texts([one.ids for one in part], length, [one.answers for one in part]) for part in told)
    asker = Asker(session, tokenizer, length, examples[0][0].before)
    shown = [one for one in examples[1] if one.question][: plan.asked]
    if "before" not in work.known:
        say("perplexity and answers before")
        asked = REHEARSED if plan.rehearse and tokenizer.has_template else ()
        work.note(before=_judged(plan, asker, judged, shown), rehearsed=[asker.own(question) for question in asked])
    kept = zip(REHEARSED, work.known["rehearsed"], strict=False)
    lessons = [tokenizer.conversation(asker.talk(question, answer)) for question, answer in kept if answer]
    lessons = [one for one in lessons if len(one.ids) <= length + 1]
    if lessons:
        more = rows_of_texts([one.ids for one in lessons], length, [one.answers for one in lessons])
        rows = np.concatenate([rows[0], more[0]]), np.concatenate([rows[1], more[1]])
    steps = plan.epochs * len(rows[0])
    state = _train(plan, session, work, rows, steps, say)
    say("perplexity and answers after")
    was, now = work.known["before"], _judged(plan, asker, judged, shown)
    export_adapter(work.program, plan.out, state, base=plan.base.name)
    questions, wanted = [one.question for one in shown], [one.wanted for one in shown]
    return Learned(
        (was["perplexity"], now["perplexity"]),
        tuple(zip(questions, wanted, was["answers"], now["answers"], strict=True)),
        tuple(zip(plan.asks, was["others"], now["others"], strict=True)),
        steps,
        state,
        work.program,
    )


def _judged(plan: Plan, asker: Asker, rows: tuple[np.ndarray, np.ndarray], shown: Sequence[Example]) -> dict[str, Any]:
    """Return the perplexity of rows, and what is answered to examples and to questions beside them."""
    return {
        "perplexity": asker.perplexity(*rows),
        "answers": [asker.answer(one) for one in shown],
        "others": [asker.own(question) for question in plan.asks],
    }


def _train(
    plan: Plan, session: TrainingSession, work: Work, rows: Sequence[np.ndarray], steps: int, say: Callable[[str], None]
) -> Path:
    """Make the steps that are left, with checkpoints, and return the state after the last."""
    x, y = rows
    done = work.go_on(session)
    if done:
        say(f"going on behind step {done} of {steps}")
    began = saved = told = time.monotonic()
    first, losses = done, list[float]()
    while done < steps:
        epoch, place = divmod(done, len(x))
        row = int(np.random.default_rng((plan.seed, epoch)).permutation(len(x))[place])
        rate = plan.learning_rate * (1 - 0.9 * done / steps)
        losses.append(session.train(x[row : row + 1], y[row : row + 1], rate))
        done, now = done + 1, time.monotonic()
        if now - saved > plan.every:
            work.save(session, done)
            saved = now
        if now - told > 5 or done in (first + 1, steps):
            left = (now - began) / (done - first) * (steps - done)
            say(f"step {done} of {steps}, loss {np.mean(losses[-len(x) :]):.3f}, {_time(left)} to go")
            told = now
    return work.save(session, steps)


def _time(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
