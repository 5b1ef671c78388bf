"""The metrics of a broker: what they are, how they are read, how they are served."""
