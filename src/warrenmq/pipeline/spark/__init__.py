"""Starting Spark: the session, the Java it runs on, the Python it starts."""
