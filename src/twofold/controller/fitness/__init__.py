"""Whether a node may serve a metadata image: one of its own directory, or one of controllers elsewhere."""
