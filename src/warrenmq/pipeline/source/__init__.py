"""The Spark source: streams of the broker as DataFrames. `datasource.py` is where Spark comes in."""
