"""Apache Kafka as the oracle: the same bytes go to it and to Twofold, and the answers are compared."""
