"""Sockets, dispatch, and what every request passes before its handler."""
