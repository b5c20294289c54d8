"""Which events are worth keeping, where they are kept, and what they say about one message."""
