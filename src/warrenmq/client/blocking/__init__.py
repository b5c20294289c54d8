"""The blocking face: connections, channels and consumers that any thread may use; one I/O thread per connection."""
