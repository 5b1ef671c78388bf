"""What runs the replication of this broker's partitions: its followers' fetchers."""
