"""The consumer as a member of a group: the classic protocol, without and with I/O."""
