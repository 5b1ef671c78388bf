"""The query's checkpoint, wherever it is, and the JVM of the driver that knows how to reach it."""
