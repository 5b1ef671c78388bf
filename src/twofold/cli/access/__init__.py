"""`twofold acl` and `twofold user`: who may do what, and who is known by a password."""
