"""Result tables on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from converter.backend.lowering.forms import FormChoice, form_rows
from converter.backend.targets import unit_of
from converter.cli.inspection import Contents, Surveyed
from converter.driver.program import Choice
from converter.ir.paths import layer_of_weight
from converter.program.manifest import Certificate, Manifest, StateTensor, TensorSpec, UpdateRow
from converter.program.origins import PHASES
from converter.support.folding import fold
from converter.support.invocation import command
from converter.support.notes import Note
from converter.support.words import COSTS, MUCH_READ, amount, count, counted, reading, share, size

if TYPE_CHECKING:
    from converter.driver.quantization import QuantizationReport
    from converter.tools.measure.profile import Profile
    from jax_frontend.catalogue import PrimitiveEntry

#: Columns where stdout is no terminal and COLUMNS is not set: wide enough that names of layers stay on one line.
_PIPED_WIDTH = 160
#: Rows of a table that is not wide (`--json` holds all), and columns of one with a column for each signature.
_MOST_ROWS, _MOST_SIGNATURES = 30, 4

#: Layers that a line of the table of frozen layers names.
_MOST_NAMES = 3
#: Characters of a card's text that are shown.
_MOST_OF_A_TEXT = 300

#: The costs by which one chooses a scheme.
_CHOSEN_BY = {
    "trained_parameters": "numbers that train",
    "step_cost": "step",
    "resident_bytes": "memory",
    "state_bytes": "saved state",
}

#: Stands for the layer of what the compiler adds.
_COMPILER = "(compiler)"


class Results:
    """Prints results to stdout."""

    def __init__(self, wide: bool = False) -> None:
        """With `wide` tables have all columns and rows; else those by which one chooses, which 80 columns hold."""
        self.wide = wide
        width = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else _PIPED_WIDTH
        self._console = Console(width=width, markup=False, highlight=False)

    def line(self, text: str = "", style: str | None = None) -> None:
        """Print a line, never broken: paths and commands are copied from it."""
        self._console.print(text, style=style, soft_wrap=True)

    def heading(self, manifest: Manifest) -> None:
        """Print what the program is."""
        batch = f"batch {manifest.batch}"
        if manifest.accumulates:
            batch += f" in micro-batches of {manifest.micro_batch}"
        loss = manifest.loss
        if isinstance(loss, dict):
            loss = " + ".join(f"{name} of {output}" for output, name in loss.items())
        if manifest.keep_base:
            loss += f" + {manifest.keep_base:g} times the divergence from the base"
        state = manifest.state if manifest.loss_scale == 1 else f"{manifest.state}, loss scale {manifest.loss_scale:g}"
        running = manifest.running_rate
        rate = f"at {manifest.learning_rate:g}" if running is None else f"at its own rate ({running.description})"
        self.line(
            f"{manifest.name}: scheme {manifest.update.scheme}, optimizer {manifest.optimizer} {rate}, loss {loss}, "
            f"{batch}, target {manifest.target}, state {state}",
            style="bold",
        )

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        right: Iterable[int] = (),
        extra: Iterable[int] = (),
    ) -> None:
        """Print a table; the columns numbered in `right` hold numbers, those in `extra` are for wide ones only."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        numbers, left_out = set(right), set() if self.wide else set(extra)
        shown = [index for index in range(len(columns)) if index not in left_out]
        for index in shown:
            justify: Literal["left", "right"] = "right" if index in numbers else "left"
            table.add_column(columns[index], justify=justify, overflow="fold")
        for row in rows:
            table.add_row(*(row[index] for index in shown))
        self.line(title, style="bold")
        self._console.print(table)
        self.line()

    def update_table(self, rows: Sequence[UpdateRow]) -> None:
        """What trains, and why.

        Unless wide, frozen parameters in a row are one, and of many rows those of several layers, or those at both
        ends.
        """
        lines: list[tuple[str, ...]] = []
        folded = self._folded([(row.parameter, share(row.fraction), row.why) for row in rows])
        for is_frozen, run in groupby(folded, key=lambda one: not rows[one[1][0]].fraction):
            alike = [*run]
            if self.wide or not is_frozen or len(alike) == 1:
                lines += [line for line, _ in alike]
            else:
                layers = {layer_of_weight(rows[i].parameter) for _, members in alike for i in members}
                what = counted(len(layers), "layer") if len(layers) > 1 else layers.pop()
                lines.append((what, share(0.0), "; ".join(dict.fromkeys(line[2] for line, _ in alike))))
        self.table("What trains", ("parameter", "trains", "why"), self._ends(lines), right=[1])
        self.line(f"{sum(row.fraction > 0 for row in rows)} of {len(rows)} parameters train")
        self.line()

    def _folded(self, rows: Sequence[tuple[str, ...]]) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
        """Return rows, unless wide of more than a screen those of several layers as one, and the numbers of each."""
        if self.wide or len(rows) <= _MOST_ROWS:
            return [(row, (i,)) for i, row in enumerate(rows)]
        return fold(rows)

    def _ends(self, rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Return the rows.

        Unless wide, of more than a screen the first and, for a model's head is there, most of the last.
        """
        if self.wide or len(rows) <= _MOST_ROWS:
            return [*rows]
        first, last = rows[: _MOST_ROWS // 3], rows[-(_MOST_ROWS - _MOST_ROWS // 3 - 1) :]
        more = (f"({len(rows) - len(first) - len(last)} more: --wide)", *[""] * (len(rows[0]) - 1))
        return [*first, more, *last]

    def notes(self, notes: Sequence[Note]) -> None:
        """Print what is fixed, left out, or not as it was written; nothing where there is nothing to say."""
        if notes:
            rows = [(note.subject, note.status, note.why) for note in notes]
            self.table("What else became of the model", ("layer", "", "why"), rows)

    def costs(self, costs: Mapping[str, Any], target: str) -> None:
        """Print what a step costs, by the table of a target."""
        unit = unit_of(target)
        rows = [(label, amount(name, costs.get(name), unit)) for name, (label, _) in COSTS.items()]
        self.table("Costs of a training step", ("", "predicted"), rows, right=[1])

    def tried(self, choices: Sequence[Choice], manifest: Manifest) -> None:
        """Print what was weighed for a memory budget; a forward pass that runs twice is the last resort."""
        chosen = manifest.micro_batch, choices[-1].recompute
        rows = [
            (
                f"{choice.micro_batch}{' (chosen)' * ((choice.micro_batch, choice.recompute) == chosen)}",
                "twice" if choice.recompute else "once",
                size(choice.resident_bytes),
                count(choice.flops),
            )
            for choice in choices
        ]
        header = ("micro-batch", "forward pass", "resident", "FLOPs of a step")
        self.table("Within the memory budget", header, rows, right=[2, 3])

    def quantization(self, report: QuantizationReport) -> None:
        """Print what became of the frozen layers, and what that costs."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for layer in report.layers:
            groups.setdefault((layer.form, layer.operator, layer.why), []).append(layer.layer)
        rows = [
            (
                form,
                operator,
                str(len(layers)),
                ", ".join(layers[:_MOST_NAMES]) + ("" if len(layers) <= _MOST_NAMES else ", ..."),
                why,
            )
            for (form, operator, why), layers in groups.items()
        ]
        self.table("Frozen layers", ("form", "operator", "layers", "which", "why"), rows, right=[2])
        if report.said:
            self.line(report.said)
        self.line()

    def report(self, choices: Sequence[FormChoice]) -> None:
        """Print which form each op of the training step got; costs in the unit of the target's table."""
        columns = ("layer", "phase", "op", "result", "times", "form", "cost", "instead of")
        self.table("Forms", columns, self._ends(form_rows(choices)), right=[4, 6], extra=[3, 4, 7])

    def schemes(self, rows: Sequence[Mapping[str, Any]], target: object) -> None:
        """Schemes beside each other: each with its costs, or the reason why the model does not allow it."""
        unit = unit_of(target)
        fit = [row for row in rows if "error" not in row]
        labels = {name: label for name, (label, _) in COSTS.items()} if self.wide else _CHOSEN_BY
        figures = {name: label for name, label in labels.items() if any(name in row for row in fit)}
        self.table(
            "Costs of a training step by update scheme",
            ("scheme", *figures.values()),
            [(row["scheme"], *(amount(name, row[name], unit) for name in figures)) for row in fit],
            right=range(1, len(figures) + 1),
        )
        for row in fit:
            if row.get("read_bytes", 0) >= MUCH_READ:
                self.line(f"{row['scheme']}: {reading(row['read_bytes'])}")
        for row in rows:
            if "error" in row:
                self.line(f"{row['scheme']}: not for this model: {row['error']}")

    def passes(self, seconds: Mapping[str, float]) -> None:
        """Show the CPU time of each pass."""
        self.table(
            "Passes",
            ("pass", "CPU s"),
            [(name, f"{taken:.3f}") for name, taken in seconds.items()],
            right=[1],
        )

    def operations(self, entries: Sequence[PrimitiveEntry], differences: Sequence[str]) -> None:
        """Print what JAX's primitives become, and where the results differ."""
        self.table(
            "Primitives of JAX",
            ("primitive", "rules for", "how, or what to do instead", "not"),
            [(entry.primitive, entry.subject, entry.how, "; ".join(entry.refused)) for entry in entries],
            extra=[1, 3],
        )
        for difference in differences:
            self.line(difference)

    def contents(self, contents: Contents | Surveyed) -> None:
        """Print all of a program, or of a file that may become one."""
        if isinstance(contents, Surveyed):
            self._survey(contents)
            return
        manifest = contents.manifest
        self.heading(manifest)
        head = "" if contents.head is None else f", head {contents.head}"
        self.line(f"{contents.path}, {size(contents.file_bytes)}{head}, graph {manifest.graph_hash[:16]}")
        self.line()
        if card := [(self._short(name), self._short(text)) for name, text in manifest.card.items()]:
            self.table("Model card", ("", ""), card)
        signatures = [
            (name if side == "in" and not i else "", side if not i else "", label, kind, role)
            for name, signature in manifest.signatures.items()
            for side, specs in (("in", signature.inputs), ("out", signature.outputs))
            for i, (label, kind, role) in enumerate(_tensors(specs))
        ]
        self.table("Signatures", ("signature", "", "name", "type", "role"), signatures)
        stored = {tensor.tensor: tensor for tensor in manifest.state_tensors}
        parameters: list[tuple[str, ...]] = [
            (p.name, f"{p.dtype}{list(p.shape)}", " ".join(_as_stored(stored[piece.tensor]) for piece in p.pieces))
            for p in manifest.parameters
        ]
        columns_of = ("parameter", "in the model", "as stored")
        for title, kind in (("Trained parameters", False), ("Statistics, which a step updates", True)):
            kept = [row for row in parameters if _is_statistic(row[0], manifest.update.table) == kind]
            if kept:
                self.table(title, columns_of, self._ends([row for row, _ in self._folded(kept)]))
        self.update_table(manifest.update.table)
        names = list(contents.operators)
        operators = dict.fromkeys(op for used in contents.operators.values() for op in used)
        rows = [(op, *(str(contents.operators[name].get(op, "")) for name in names)) for op in operators]
        rows = [row for row in rows if self.wide or any(row[1 : 1 + _MOST_SIGNATURES])]
        totals = ("total", *(str(sum(contents.operators[name].values())) for name in names))
        columns = range(1, len(names) + 1)
        self.table("Operators", ("operator", *names), [*rows, totals], columns, extra=columns[_MOST_SIGNATURES:])
        self.costs({**manifest.costs, "file_bytes": contents.file_bytes}, manifest.target)
        if manifest.certificates:
            self.certificates(manifest.certificates)

    def _short(self, text: str) -> str:
        """Return a text in one line, of a long one its beginning unless wide."""
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return line if self.wide or len(line) <= _MOST_OF_A_TEXT else f"{line[:_MOST_OF_A_TEXT]} ... (--wide)"

    def _survey(self, found: Surveyed) -> None:
        path = found.path
        self.line(f"{path}, {size(path.stat().st_size)}: a TFLite file that is no training program")
        for one in found.signatures:
            self.line()
            self.line(f"signature {one.signature}")
            sides = (("in", one.inputs), ("out", one.outputs))
            rows = [(side if not i else "", t.name, t.kind) for side, ts in sides for i, t in enumerate(ts)]
            self.table("Inputs and outputs", ("", "name", "type"), rows)
            layers = [
                (
                    layer.name,
                    " ".join(kind.lower() for kind in layer.operators),
                    str(list(layer.shape)),
                    str(layer.weights),
                )
                for layer in one.layers
            ]
            self.table("Layers", ("layer", "operators", "gives", "weights"), self._ends(layers), (3,))
            cuts = [(cut.name, str(list(cut.shape)), cut.why) for cut in one.cuts]
            self.table("Good places to cut", ("cut=", "holds", "why"), cuts)
        self.line("Build with one: " + command(f"build {quote(str(path))} --classes N, and --cut NAME"))

    def certificates(self, certificates: Sequence[Certificate]) -> None:
        """Print what came of running a program on real engines."""
        rows = [
            (
                c.on,
                "certified" if c.ok else "not certified",
                f"{c.engine} {c.version} on {c.driver}" if c.driver else f"{c.engine} {c.version}",
                "whole" if c.whole else "in parts",
                *map(_error, (c.loss_error, c.update_error, c.output_error)),
                "" if c.floor is None else _error(c.floor),
                c.date,
            )
            for c in certificates
        ]
        errors = ("loss error", "update error", "output error", "float16 floor")
        self.table("On engines", ("on", "", "engine", "taken", *errors, "when"), rows, range(4, 8), extra=[2, 3, 7, 8])
        for certificate in certificates:
            for failure in certificate.failures:
                self.line(f"{certificate.on}: {failure}")
                if failure.advice:
                    self.line(f"    {failure.advice}")

    def profile(self, profile: Profile, by: Iterable[Literal["layer", "operator"]]) -> None:
        """Print what the layers or operators of a step take, or both, and how that was measured."""

        def line(name: str, times: Iterable[Mapping[str, float]]) -> tuple[str, ...]:
            sums = [sum(phases) for phases in zip(*(t.values() for t in times), strict=True)]
            return name, *map(_ms, sums), _ms(sum(sums)), f"{sum(sums) / profile.step:.1%}"

        for column in by:
            times = {name or _COMPILER: t for name, t in profile.by(column).items() if any(t.values())}
            rows = [line(name, [phases]) for name, phases in times.items()][: None if self.wide else _MOST_ROWS]
            if len(times) > len(rows):
                rows.append(line(f"({len(times) - len(rows)} more: --wide)", [*times.values()][len(rows) :]))
            self.table(
                f"Milliseconds of a training step by {column}",
                (column, *PHASES, "total", "share"),
                [*rows, line("total", times.values())],
                right=range(1, 6),
            )
        self.line(
            f"measured: the whole step, {_ms(profile.step)} ms, and each operator alone, {_ms(profile.alone)} ms in "
            f"sum ({profile.alone / profile.step:.2f} of the step); the fastest of {profile.steps}, "
            f"threads: {profile.threads}"
        )
        self.line("estimated: what an operator takes in the step, by its share of that sum")

    def built(self, path: Path, nbytes: int) -> None:
        """Print where the program is, and what to do next."""
        self.line(f"wrote {path} ({size(nbytes)})")
        self.line(f"next: {command(f'inspect {quote(str(path))}')}")


def _tensors(specs: Sequence[TensorSpec]) -> list[tuple[str, str, str]]:
    """(name, type, role) of inputs or outputs; the state is one line."""
    lines = [(spec.name, str(spec), spec.role) for spec in specs if spec.role != "state"]
    state = sum(spec.role == "state" for spec in specs)
    return lines + ([(counted(state, "tensor"), "", "state")] if state else [])


def _error(value: float | None) -> str:
    return "no number" if value is None else f"{value:.1e}"


def _ms(milliseconds: float) -> str:
    """Return a time, with more digits of a short one; blank where there is none."""
    return f"{milliseconds:.2f}" if milliseconds >= 1 else f"{milliseconds:.3f}" if milliseconds else ""


def _as_stored(tensor: StateTensor) -> str:
    """Return the shape in which a state tensor is stored, and its type where that is not the weight's."""
    return f"{'int8' * (tensor.dtype == 'int8')}{list(tensor.shape)}"


def _is_statistic(name: str, table: Sequence[UpdateRow]) -> bool:
    """Return whether a tensor of a step has no gradient: the table says so, or knows neither it nor what it adapts."""
    shares = {row.parameter: row.fraction for row in table}
    if name in shares:
        return not shares[name]
    return not any(name.startswith(f"{parameter}/") for parameter in shares)
