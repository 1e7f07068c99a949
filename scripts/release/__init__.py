"""Releases: the version, the notes, and the files that people get."""
