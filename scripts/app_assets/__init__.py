"""What the Android app carries: the program, its samples, and how strokes become its input; made by one command."""
