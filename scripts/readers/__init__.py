"""Writes the readers' records and tables in Kotlin and TypeScript from the schema of the manifest."""
