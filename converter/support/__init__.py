"""What every wing uses: errors, notes, words, safe files. It imports nothing of the project."""
