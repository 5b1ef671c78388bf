"""The group coordinator: its shards, and the offsets that groups commit."""
