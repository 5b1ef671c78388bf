"""Worlds for the machines of replication."""
