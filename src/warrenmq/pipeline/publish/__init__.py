"""Publish: answers as documents on the stream `warren.analysis`, as Parquet, and as a report."""
