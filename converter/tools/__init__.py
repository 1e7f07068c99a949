"""What is done with finished programs: conformance tests, estimates, measurements, reports and search."""
