"""What is in the files: framing, checksums, rolling, torn tails. No threads, no clock, and no idea of a broker."""
