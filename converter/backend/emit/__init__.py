"""Flatbuffer emission of lowered graphs."""
