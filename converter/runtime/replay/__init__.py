"""Replay memory: rows of earlier trainings in a file of bounded size, against forgetting (docs/replay-memory.md)."""
