"""Order of execution and memory planning."""

from converter.schedule.bound import Bound
from converter.schedule.delegate import how, numbering
from converter.schedule.memory import ArenaPlan, check_no_overlap, plan
from converter.schedule.order import schedule
from converter.schedule.recompute import recompute
from converter.schedule.resident import Resident, resident, transient
from converter.schedule.segments import segmented
from converter.schedule.timeline import Timeline, timeline

__all__ = [
    "ArenaPlan",
    "Bound",
    "Resident",
    "Timeline",
    "check_no_overlap",
    "how",
    "numbering",
    "plan",
    "recompute",
    "resident",
    "schedule",
    "segmented",
    "timeline",
    "transient",
]
