"""Quotas: how much a client may take, what it took, and how long it has to wait."""
