"""Measurements. `python -m bench` (or `make bench`) runs all of them; `python -m bench NAME ...` some."""
