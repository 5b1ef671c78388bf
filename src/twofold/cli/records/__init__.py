"""`twofold produce` and `twofold consume`."""
