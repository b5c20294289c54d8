"""One small contract, one adapter for each client library that people use with RabbitMQ.

The scenarios in tests/interop speak the contract; the adapters translate it into the calls that a user of that
library would write. Node's and Java's clients sit behind `remote.py`, in a process of their own.
"""
