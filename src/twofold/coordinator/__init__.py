"""Coordinators: pure machines over the partitions of an internal topic."""
