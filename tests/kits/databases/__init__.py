"""Databases for real: each test run starts its own, with its own data folder and a free port."""
