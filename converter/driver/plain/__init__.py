"""What a program says of the plain model in it, for the export."""
