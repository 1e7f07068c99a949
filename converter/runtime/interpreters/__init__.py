"""Interpreters that a session runs in: one interface, one file for each way to call LiteRT."""
