"""What a fetch asks for, and the sessions that remember it."""
