"""The broker itself, pure: no sockets, files, threads or clock."""
