"""Build record in the program file, for reports: `record.py` defines and reads it, `gather.py` makes it."""

from __future__ import annotations

from converter.driver.build_report.gather import account_of, parts
from converter.driver.build_report.record import KINDS, Account, MemoryRecord, ModelPart, RecordedCall, read_account

__all__ = ["KINDS", "Account", "RecordedCall", "MemoryRecord", "ModelPart", "account_of", "parts", "read_account"]
