"""The running controller: the writer of the metadata log, its loader and its snapshots."""
