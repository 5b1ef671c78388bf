"""Connections to brokers, for clients and for brokers alike."""
