"""The partitions of which this broker holds a replica."""
