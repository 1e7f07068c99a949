"""Order of execution and memory planning."""

from converter.schedule.memory import ArenaPlan, check_no_overlap, plan
from converter.schedule.order import schedule
from converter.schedule.recompute import recompute

__all__ = ["ArenaPlan", "check_no_overlap", "plan", "recompute", "schedule"]
