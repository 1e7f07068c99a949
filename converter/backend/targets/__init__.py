"""Target tables (phones: `litert-2.toml`): the operators that each runtime has, and what each form costs there."""

from converter.backend.targets.target import Target, tables, target, unit_of

__all__ = ["Target", "tables", "target", "unit_of"]
