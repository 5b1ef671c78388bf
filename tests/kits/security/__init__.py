"""Which right each API needs, as data, and what asks for it."""
