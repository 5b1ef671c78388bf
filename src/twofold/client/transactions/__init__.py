"""A producer's transactions."""
