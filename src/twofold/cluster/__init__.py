"""A node's way to the rest of its cluster: the controllers' metadata, requests to them, connections to brokers."""
