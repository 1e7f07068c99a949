"""The Android libraries as a Maven repository: what `scripts/build_maven` writes."""
