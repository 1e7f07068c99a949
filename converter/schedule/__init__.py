"""Order of execution and memory planning."""

from converter.schedule.memory import ArenaPlan, check_no_overlap, plan
from converter.schedule.order import schedule

__all__ = ["ArenaPlan", "check_no_overlap", "plan", "schedule"]
