"""The metadata controller: a pure machine over the metadata log."""
