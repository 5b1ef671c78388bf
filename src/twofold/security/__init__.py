"""Authentication without sockets: SASL mechanisms, TLS contexts, principals. Broker and clients share it."""
