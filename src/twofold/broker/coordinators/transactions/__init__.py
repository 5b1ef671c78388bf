"""The transaction coordinator: its shards, its timers, and the markers that it writes."""
