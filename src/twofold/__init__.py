"""Twofold: an event log that speaks the Kafka protocol and is built around transactions."""
