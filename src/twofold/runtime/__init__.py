"""Seams to the outside world: clock, timers, disk, network and randomness, real and simulated."""
