"""`twofold profile`."""
