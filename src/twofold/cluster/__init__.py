"""A node's way to the rest of its cluster: metadata of the controllers, requests to them, connections to brokers."""
