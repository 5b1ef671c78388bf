"""How the replicas of a partition stay alike: what a leader and a follower decide, without network, clock and disk."""
