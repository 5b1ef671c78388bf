"""Opening a log after a stop or a crash, and mending one that failed."""
