"""The group coordinator: classic groups and committed offsets as a machine over a partition of `__consumer_offsets`.

`records` is the format of the log and `state` what the log says; `membership` knows the members of each group now,
and `offsets` and `overview` serve the requests about what is committed and about groups.
"""
