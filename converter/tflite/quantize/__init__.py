"""Integer forms of frozen layers."""
