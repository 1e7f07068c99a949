"""`build`: options and models in, a program out; it alone knows every wing."""
