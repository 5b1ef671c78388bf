"""`twofold group`."""
