"""Topics as a broker creates, shows and deletes them."""
