"""Lowering of semantic ops to TFLite's builtins; the rule of each op is in `rules/`."""
