"""The Spark sink: rows as messages. `writer.py` is where Spark comes in."""
