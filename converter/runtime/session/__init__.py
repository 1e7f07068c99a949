"""Sessions: a training program at work, its loop, and what it has learned."""
