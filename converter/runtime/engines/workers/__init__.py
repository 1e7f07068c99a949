"""Worker processes of the engines, which run their tasks and know nothing of programs."""
