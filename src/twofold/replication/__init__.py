"""Replication of one partition between brokers: the leader's and the follower's side, as values with decisions."""
