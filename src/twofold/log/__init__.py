"""Partition storage in Kafka's on-disk format."""
