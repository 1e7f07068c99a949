"""Worker processes of the engines, which run what they are given and know nothing of programs."""
