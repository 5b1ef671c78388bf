"""`twofold metadata`."""
