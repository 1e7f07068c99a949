"""HTML reports on programs: one page, made from the file, that says what trains, what a step costs and why."""
