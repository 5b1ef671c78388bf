"""What runs the replication of this broker's partitions, in a cluster of several brokers."""
