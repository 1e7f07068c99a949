"""The finished product: a training program, its file, what the file says of itself, and how it is checked."""
