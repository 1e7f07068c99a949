"""Features that touch several places: each says in a file of its own which passes it adds to the pipeline."""
