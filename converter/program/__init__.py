"""Training program file: its format, what it says of itself, and how it is checked."""
