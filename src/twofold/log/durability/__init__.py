"""What of a log is on disk, how it gets there, and what happens when that fails."""
