"""Microbenchmarks of operator forms: measured target tables, of this machine and of phones."""

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
