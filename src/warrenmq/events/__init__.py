"""What can happen to a message or a connection: the schema of events, their rows in memory, their bytes on disk.

The bottom of the house: nothing of the broker is imported here. docs/formats/events.md draws both forms.
"""
