"""Where Spark looks for it: an installed package named `pyspark_*` whose `DefaultSource` is a data source."""

from twofold.spark import TwofoldDataSource as DefaultSource

__all__ = ["DefaultSource"]
