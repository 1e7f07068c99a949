"""Order of execution and memory planning."""

from converter.schedule.delegate import how
from converter.schedule.memory import ArenaPlan, check_no_overlap, plan
from converter.schedule.order import schedule
from converter.schedule.recompute import recompute
from converter.schedule.resident import Resident, resident, transient

__all__ = ["ArenaPlan", "Resident", "check_no_overlap", "how", "plan", "recompute", "resident", "schedule", "transient"]
