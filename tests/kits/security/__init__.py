"""Certificates, tokens and an Apache Kafka with listeners of every security protocol."""
