"""`twofold topic`: topics, their records, and where their replicas are."""
