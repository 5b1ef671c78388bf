"""The protocol of dual writes against a simulated database and a simulated log: every state that can be reached."""
