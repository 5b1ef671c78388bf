"""From a batch that was sent to a batch in the log."""
