"""The server: sockets, dispatch, one module per API, partitions."""
