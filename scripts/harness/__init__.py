"""Numbers from devices that can be trusted: the harness behind `scripts/device` (docs/harness.md)."""
