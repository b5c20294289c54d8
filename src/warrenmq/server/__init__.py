"""AMQP over asyncio: sockets, sessions, and the end of the turn."""
