"""`twofold doctor`."""
