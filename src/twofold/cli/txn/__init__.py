"""`twofold txn`."""
