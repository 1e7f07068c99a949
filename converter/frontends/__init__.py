"""Front ends: each reads the models of one world, and what such models are trained with."""
