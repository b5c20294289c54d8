cimport cython

from warrenmq.protocol.properties cimport delivery_mode

cdef int _HEADERS
cdef int _DELIVERY_MODE
cdef int _REPLY_TO
cdef int _EXPIRATION
cdef int _USER_ID


@cython.locals(flags="unsigned int")
cpdef bint needs_inspection(bytes header) except -1
