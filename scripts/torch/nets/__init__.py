"""Nets by library: `NETS`, a module and its task by name."""
