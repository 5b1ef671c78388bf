"""Consumer groups of KIP-848: the coordinator computes assignments, and members reconcile with them one by one.

`records` is the format of the log, `state` what the log says of a group, `reconciliation` the step of one member and
`target` the assignment of all. `heartbeat`, `leaving`, `classic_members` and `conversion` decide on requests, each as
records that follow from the state; `groups` keeps what is not in the log: deadlines, and what is being resolved.
"""
