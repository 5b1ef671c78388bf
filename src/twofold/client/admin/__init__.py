"""The administrator's client."""
