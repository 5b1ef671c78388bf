"""Settings of the broker and of topics, with Kafka's names and defaults."""
