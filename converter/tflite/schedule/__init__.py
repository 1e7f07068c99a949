"""Operator scheduling and memory planning."""

from converter.tflite.schedule.bound import Bound
from converter.tflite.schedule.delegate import how, keeps_order, known_when_loaded, numbering
from converter.tflite.schedule.memory import ArenaPlan, check_no_overlap, plan
from converter.tflite.schedule.order import schedule
from converter.tflite.schedule.outline import in_one, outlined
from converter.tflite.schedule.recompute import recompute
from converter.tflite.schedule.resident import Resident, packed, resident, tables, transient
from converter.tflite.schedule.segments import segmented
from converter.tflite.schedule.timeline import Timeline, timeline

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
