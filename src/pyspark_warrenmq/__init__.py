"""Where Spark finds the format "warrenmq" by itself: it looks for top-level packages named pyspark_*, on the driver or
on the server of Spark Connect, and takes their `DefaultSource`. There is nothing else here.
"""

from warrenmq.pipeline.source.datasource import WarrenMQ as DefaultSource

__all__ = ["DefaultSource"]
