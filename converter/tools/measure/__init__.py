"""What each form of an operator costs, measured: tables for targets of one's own, on this machine and on phones."""

from converter.tools.measure.cases import Case, built, cases, gemm, graph_of
from converter.tools.measure.machine import measured_here, measured_table, nanoseconds, processor
from converter.tools.measure.table import Figures, figures, fitted

__all__ = [
    "Case",
    "Figures",
    "built",
    "cases",
    "figures",
    "fitted",
    "gemm",
    "graph_of",
    "measured_here",
    "measured_table",
    "nanoseconds",
    "processor",
]
