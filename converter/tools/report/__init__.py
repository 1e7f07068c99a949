"""HTML reports on programs: one page, made from the file, with trained weights, costs and reasons."""
