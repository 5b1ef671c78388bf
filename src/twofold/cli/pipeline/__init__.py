"""`twofold pipeline`."""
