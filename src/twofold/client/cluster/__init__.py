"""A client's view of a cluster."""
