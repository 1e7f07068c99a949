"""Lowered graphs become a flatbuffer."""
