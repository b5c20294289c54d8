cdef class TopicNode:
    cdef public dict words
    cdef public TopicNode star
    cdef public TopicNode rest
    cdef public dict destinations
    cdef public long long opened_in

    cpdef TopicNode child(self, str word)
    cpdef bint is_bare(self)


cdef class TopicMatcher:
    cdef readonly TopicNode root
    cdef long long _match_number
    cdef public long long visited

    cpdef match(self, str key, traits, dict found)
    cdef _step(self, TopicNode node, str word, list[TopicNode] ahead, list[TopicNode] opened, dict found)
    cdef _reach(self, TopicNode node, list[TopicNode] ahead, list[TopicNode] opened, dict found)


cdef list split_words(str key)
