"""Requests and responses of the busiest APIs, read and written by hand."""
