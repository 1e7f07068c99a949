"""Conformance tests: a program's step, run on a real engine and compared with the CPU; see `certify.py`."""
