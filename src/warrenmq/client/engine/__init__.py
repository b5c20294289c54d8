"""The one implementation of the client, on asyncio; both faces stand on it."""
