"""Utilities for every wing: errors, notes, words, safe files. It imports nothing of the project."""
