"""A database and the log in step: rows and records, both or neither."""
