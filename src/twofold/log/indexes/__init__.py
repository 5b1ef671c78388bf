"""The indexes beside each segment."""
