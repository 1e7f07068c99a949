"""Learning from examples: built, judged, trained with checkpoints, judged again, and taken away as an adapter."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.driver.build import build
from converter.runtime import TrainingSession, generate, rows_of_texts
from converter.runtime.export import export_adapter
from converter.runtime.texts import NOT_ASKED
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.tools.learn.examples import Example, as_tokens, read_examples
from converter.tools.learn.work import Work

if TYPE_CHECKING:
    from decoder_frontend import Tokenizer

#: The model's own answers to these are rehearsed between the examples, so that it does not forget others.
REHEARSED = (
    "What is the capital of France?",
    "What is two plus three?",
    "What color is the sky?",
    "Who wrote Hamlet?",
    "What is water?",
    "What is the opposite of hot?",
)
#: Tokens of a row without --length, at most: longer rows take much memory and are to be asked for.
_MOST_TOKENS = 512
#: Bytes of a file for each weight, about, and a little more.
_BYTES = {"float32": 4.2, "float16": 2.2, "int8": 4.2}
_BYTES_OF_FOUR_BITS = 0.8


@dataclass(frozen=True)
class Plan:
    """What is to be learned, and how.

    Attributes:
        base: a `.gguf` file or a folder of `transformers`.
        examples: a `.jsonl` file.
        out: where the adapter goes: a folder for PEFT.
        held_out: a file of other examples to judge by; None: every tenth of the examples, of fewer than five all.
        length: tokens of a row; None: as many as the longest example has, 512 at most.
        epochs: how often each example is seen.
        learning_rate: of the first step; it falls to a tenth in a line.
        update: which weights have adapters: a name of a scheme.
        frozen: what the others are stored as.
        rehearse: whether the model's own answers to a few general questions are learned between the examples.
        asked: how many of the held-out questions are answered before and after.
        every: seconds between checkpoints.
        seed: of the order.
    """

    base: Path
    examples: Path
    out: Path
    held_out: Path | None = None
    length: int | None = None
    epochs: int = 3
    learning_rate: float = 2e-4
    update: str = "lora-8:all-linear"
    frozen: str = "int4-blockwise"
    rehearse: bool = True
    asked: int = 3
    every: float = 120.0
    seed: int = 0


@dataclass(frozen=True)
class Learned:
    """What became of it.

    Attributes:
        perplexity: of the held-out answers, before and after.
        answers: question, wanted answer, and what was said before and after.
        steps: that were made.
        state: the file of the last one, which goes with the program.
        program: that trained.
    """

    perplexity: tuple[float, float]
    answers: tuple[tuple[str, str, str, str], ...]
    steps: int
    state: Path
    program: Path


def learn(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Learned:
    """Teach a language model a person's examples, and write the adapter.

    A run that was killed goes on behind its last checkpoint when it is asked for again, in the folder `<out>.learning`.

    Args:
        plan: what is to be learned, and how.
        say: told of progress, a line at a time.

    Raises:
        UsageError: something that is needed is missing, lines of a file are no examples, or nothing can be written.
    """
    if plan.out.suffix:
        raise UsageError(f"the adapter is a folder as PEFT has them, and --out is {plan.out}", page="command-line")
    require("safetensors", "an adapter of PEFT")
    require("gguf", "a language model")
    require("text", "a tokenizer")
    from decoder_frontend import Model, Tokenizer

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
    work = _prepared(plan, model, length)
    _build(plan, model, work, say)
    with TrainingSession(work.program) as session:
        return _taught(plan, session, tokenizer, work, (taught, judged), told, length, say)


def _split(plan: Plan, examples: list[Example], others: list[Example]) -> tuple[list[Example], list[Example]]:
    """Return the examples to learn and those to judge by."""
    if others:
        return examples, others
    if len(examples) < 5:
        return examples, examples  # too few to leave one out; said in the figures
    chosen = set(np.random.default_rng(plan.seed).permutation(len(examples))[: max(1, len(examples) // 10)].tolist())
    return [e for i, e in enumerate(examples) if i not in chosen], [e for i, e in enumerate(examples) if i in chosen]


def _prepared(plan: Plan, model: Any, length: int) -> Work:
    """Return the work folder, behind a look at whether all will go where it is to go."""
    parent = plan.out.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {plan.out}: {error.strerror}", page="command-line") from error
    if not os.access(parent, os.W_OK) or (plan.out.exists() and not os.access(plan.out, os.W_OK)):
        raise UsageError(f"cannot write {plan.out}: it may not be written to", page="command-line")
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
    stat, decides = plan.base.stat(), ("epochs", "learning_rate", "update", "frozen", "rehearse", "seed")
    said = {name: value for name, value in asdict(plan).items() if name in decides}
    return {**said, **files, "base": [plan.base.name, stat.st_size, stat.st_mtime_ns], "length": length}


def _build(plan: Plan, model: Any, work: Work, say: Callable[[str], None]) -> None:
    """Build the program, where no earlier run did."""
    if work.program.exists():
        say(f"{work.program} is built already")
        return
    say(
        f"building {plan.base.name}: {plan.update}, the rest in {plan.frozen}; a few minutes for half a billion weights"
    )
    began = time.perf_counter()
    built = build(
        model,
        batch=1,
        update=plan.update,
        frozen=plan.frozen,
        blocks="on",
        optimizer="adam",
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
    shown = examples[1][: plan.asked]
    if "before" not in work.known:
        say("perplexity and answers before")
        before = [_perplexity(session, *judged), [_answer(session, tokenizer, one, length) for one in shown]]
        asked = REHEARSED if plan.rehearse and tokenizer.has_template else ()
        own = [_own(session, tokenizer, question, length) for question in asked]
        work.note(before=before, rehearsed=own)
    kept = zip(REHEARSED, work.known["rehearsed"], strict=False)
    lessons = [tokenizer.conversation(_talk(question, answer)) for question, answer in kept if answer]
    lessons = [one for one in lessons if len(one.ids) <= length + 1]
    if lessons:
        more = rows_of_texts([one.ids for one in lessons], length, [one.answers for one in lessons])
        rows = np.concatenate([rows[0], more[0]]), np.concatenate([rows[1], more[1]])
    steps = plan.epochs * len(rows[0])
    state = _train(plan, session, work, rows, steps, say)
    say("perplexity and answers after")
    after = _perplexity(session, *judged), [_answer(session, tokenizer, one, length) for one in shown]
    export_adapter(work.program, plan.out, state, base=plan.base.name)
    was, said = work.known["before"]
    answers = tuple(zip([one.question for one in shown], [one.wanted for one in shown], said, after[1], strict=False))
    return Learned((was, after[0]), answers, steps, state, work.program)


def _train(
    plan: Plan, session: TrainingSession, work: Work, rows: Sequence[np.ndarray], steps: int, say: Callable[[str], None]
) -> Path:
    """Make the steps that are left, with checkpoints, and return the state behind the last."""
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


def _perplexity(session: TrainingSession, x: np.ndarray, y: np.ndarray) -> float:
    """Return e to the mean loss of the tokens that are asked for: of one row the loss is the mean of its tokens."""
    tokens = (y != NOT_ASKED).sum(1)
    losses = [session.evaluate(x[i : i + 1], y[i : i + 1])["loss"] for i in range(len(x))]
    return float(np.exp(np.average(losses, weights=tokens)))


def _answer(session: TrainingSession, tokenizer: Tokenizer, example: Example, length: int) -> str:
    """Return what the model answers to an example."""
    if tokenizer.has_template:
        return _written(session, tokenizer, tokenizer.prompt(example.asked, **example.options), length)
    return _written(session, tokenizer, tokenizer.encode(example.question, begins=True), length)


def _own(session: TrainingSession, tokenizer: Tokenizer, question: str, length: int) -> str:
    """Return what the model answers to a general question; nothing where that has no room in a row."""
    return _written(session, tokenizer, tokenizer.prompt(_talk(question)), length)


def _talk(question: str, answer: str | None = None) -> list[dict[str, str]]:
    said = [] if answer is None else [{"role": "assistant", "content": answer}]
    return [{"role": "user", "content": question}, *said]


def _written(session: TrainingSession, tokenizer: Tokenizer, prompt: list[int], length: int) -> str:
    room = min(length - len(prompt), 32)
    if room < 1:
        return ""
    return tokenizer.decode(list(generate(session, prompt, most=room, temperature=0, stop=tokenizer.ends))).strip()


def _time(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
