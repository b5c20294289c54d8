"""AMQP 0-9-1 without I/O, for both ends of a connection."""
