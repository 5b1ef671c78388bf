"""Which right each API needs, as data, and what asks for it; certificates, tokens and an Apache Kafka to log in to."""
