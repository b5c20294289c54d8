cimport cython

from warrenmq.protocol.properties cimport delivery_mode

cdef int _HEADERS
cdef int _DELIVERY_MODE
cdef int _REPLY_TO
cdef int _EXPIRATION
cdef int _USER_ID
cdef bytes _REPORT_TO
cdef bytes _WANTS_UID


@cython.locals(flags="unsigned int")
cpdef bint needs_inspection(bytes header) except -1
cpdef bint wants_report(bytes header) except -1
