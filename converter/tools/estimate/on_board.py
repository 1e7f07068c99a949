"""Time on a microcontroller: from instructions by the table of its target, and the clock of a board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from converter.tools.estimate.interval import Interval
from converter.tools.micro.boards import Board

#: Instructions that a Cortex-M4 under QEMU took, over what the table says; docs/estimate.md says of which programs. The
#: table knows neither the setting up of a signature in the arena, most of a small net's step, nor enough of int8.
FLOAT, INT8 = Interval(0.8, 6.0), Interval(0.8, 8.0)


@dataclass(frozen=True)
class BoardEstimate:
    """What training by one update scheme would take on a board.

    Attributes:
        scheme: its name.
        instructions: of one step.
        step: seconds of one step.
        training: seconds of all steps.
        resident_bytes: RAM of a session: arena, state and features.
        fits: whether the board has it.
        costs: see `converter.backend.costs.costs`.
    """

    scheme: str
    instructions: Interval
    step: Interval
    training: Interval
    resident_bytes: int
    fits: bool
    costs: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        pairs = {
            "instructions": self.instructions, "step_seconds": self.step, "training_seconds": self.training,
        }  # fmt: skip
        return {
            "scheme": self.scheme,
            **{name: [interval.low, interval.high] for name, interval in pairs.items()},
            "resident_bytes": self.resident_bytes,
            "fits": self.fits,
            "costs": dict(self.costs),
        }


def estimate_on_board(
    rows: Sequence[Mapping[str, Any]], board: Board, steps: int, int8: bool
) -> list[BoardEstimate | Mapping[str, Any]]:
    """Return what training would take, for each scheme; rows with `error` are returned as they are.

    Args:
        rows: `scheme` and the costs by the table of boards, or `scheme` and `error`.
        board: which.
        steps: of the whole training.
        int8: whether frozen layers are in int8.
    """
    return [row if "error" in row else _estimate(row, board, steps, INT8 if int8 else FLOAT) for row in rows]


def _estimate(row: Mapping[str, Any], board: Board, steps: int, counted: Interval) -> BoardEstimate:
    instructions = counted * row["step_cost"]
    slowest, fastest = board.per_cycle
    step = Interval(instructions.low / (fastest * board.mhz * 1e6), instructions.high / (slowest * board.mhz * 1e6))
    costs = {name: value for name, value in row.items() if name != "scheme"}
    resident = int(row["resident_bytes"])
    return BoardEstimate(str(row["scheme"]), instructions, step, step * steps, resident, board.fits(resident), costs)


def board_to_json(found: Sequence[BoardEstimate | Mapping[str, Any]], board: Board, steps: int) -> dict[str, Any]:
    """Return plain JSON values."""
    rows = [row.to_json() if isinstance(row, BoardEstimate) else dict(row) for row in found]
    return {"board": asdict(board), "target": "tflm", "steps": steps, "schemes": rows}
