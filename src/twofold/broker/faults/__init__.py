"""Faults that a test asks for. A broker has them only if it was started for tests."""
