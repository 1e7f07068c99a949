"""Tools for finished programs: conformance tests, estimates, measurements, reports and search."""
