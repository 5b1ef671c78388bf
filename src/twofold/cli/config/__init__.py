"""`twofold config`."""
