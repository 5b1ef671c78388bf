"""What the parts of the demo agree on: topics and times."""

ORDERS, ENRICHED, REVENUE, PLAIN = "orders", "enriched", "revenue", "enriched-plain"
EXACT = (ENRICHED, REVENUE)
"""What is written exactly once: the name of the topic is also the sink's `transactionalIdPrefix`."""
JOURNAL = {"cleanup.policy": "compact", "flush.messages": "1"}
PARTITIONS = 2
WINDOW_S = 10
LATE_S = 10
"""How late an order may come and still count: a window is closed when an order is this much younger than its end. More
than the broker is away, because then the orders of one partition may come that much later than those of the other."""
