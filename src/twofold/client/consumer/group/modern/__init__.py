"""A member of a group of the new protocol (KIP-848), whose partitions the broker assigns."""
