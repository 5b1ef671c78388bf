"""The metadata log and its quorum (one voter for now)."""
