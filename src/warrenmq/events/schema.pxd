# The C form of the numbers in schema.py that compiled modules use.
cdef enum:
    PUBLISHED = 1
    ROUTED = 2
    ENQUEUED = 5
    DELIVERED = 6
    R_AUTO_ACK = 20
    MAX_CODE = 127
