"""The resources of the HTTP API, one file each."""
