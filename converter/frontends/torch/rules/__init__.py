"""Import rules by subject."""
