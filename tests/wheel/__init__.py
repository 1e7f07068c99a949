"""The wheel, installed where nothing of the clone is found."""
