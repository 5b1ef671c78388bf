"""Where a broker has its metadata from: `alone`, it is its own controller; `member`, controllers elsewhere."""
