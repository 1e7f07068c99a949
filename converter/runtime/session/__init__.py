"""Sessions: a running training program, its loop, and its state."""
