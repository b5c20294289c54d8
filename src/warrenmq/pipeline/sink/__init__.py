"""Write: the Spark sink, rows of a DataFrame as messages. Spark enters at `writer.py`."""
