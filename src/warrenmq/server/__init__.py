"""AMQP over asyncio: sockets, sessions, event-loop turns."""
