cimport cython


@cython.locals(flags="unsigned int")
cpdef bint needs_inspection(bytes header) except -1
