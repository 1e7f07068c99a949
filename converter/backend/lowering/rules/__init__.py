"""Lowering rules, one for each semantic op, by subject; `converter.backend.lowering.lower` joins their tables."""
