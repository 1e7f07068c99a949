"""Operator scheduling and memory planning."""

from converter.backend.schedule.bound import Bound
from converter.backend.schedule.delegate import how, keeps_order, known_when_loaded, numbering
from converter.backend.schedule.memory import ArenaPlan, check_no_overlap, plan
from converter.backend.schedule.order import schedule
from converter.backend.schedule.outline import in_one, outlined
from converter.backend.schedule.recompute import recompute
from converter.backend.schedule.resident import Resident, packed, resident, tables, transient
from converter.backend.schedule.segments import segmented
from converter.backend.schedule.timeline import Timeline, timeline

__all__ = [
    "ArenaPlan",
    "Bound",
    "Resident",
    "Timeline",
    "check_no_overlap",
    "how",
    "in_one",
    "keeps_order",
    "known_when_loaded",
    "numbering",
    "outlined",
    "packed",
    "plan",
    "recompute",
    "resident",
    "schedule",
    "segmented",
    "tables",
    "timeline",
    "transient",
]
