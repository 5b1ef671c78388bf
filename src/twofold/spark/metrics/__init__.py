"""What running queries tell: metrics for Prometheus, and the same as JSON for `twofold pipeline status`.

    from twofold.spark.metrics import MetricsListener

    spark.streams.addListener(MetricsListener("127.0.0.1:9465"))

`table`, `families` and `page` are pure. `plan` asks Spark which topics a query reads and writes, `reports`
brings what the sink knows from Spark's Python processes to this one, `watch` asks the brokers, `serving` answers over
HTTP, and `listener` puts them together. A sink's processes import this package for `reports` alone, so the listener is
imported only when it is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twofold.spark.metrics.listener import MetricsListener as MetricsListener

__all__ = ["MetricsListener"]


def __getattr__(name: str) -> object:
    if name == "MetricsListener":
        from twofold.spark.metrics.listener import MetricsListener

        return MetricsListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
