"""Events of messages and connections: their schema, their rows in memory and in the commit log, their Arrow batches.

A format at the bottom of the package: it imports nothing of the broker. docs/formats/events.md draws it.
"""
