"""Semantic ops become TFLite's builtins."""
