"""A program seen by people: one page, made from the file, that says what trains, what a step costs and why."""
