"""The client core: connections, version negotiation, metadata, retries."""
