"""One module per API key; the directory listing is the compatibility table."""
