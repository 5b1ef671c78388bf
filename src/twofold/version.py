"""The version, readable without the packaging metadata (which would cost a starting server 20 ms)."""

VERSION = "0.1.0"
