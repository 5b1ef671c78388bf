"""`twofold log`."""
