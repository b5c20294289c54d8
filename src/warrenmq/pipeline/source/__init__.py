"""Read: the Spark source, streams of the broker as DataFrames. Spark enters at `datasource.py`."""
