"""Settings of a broker and configurations of a topic, as two typed tables with Kafka's names and defaults."""
