# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True, infer_types=True
"""The ids that publishers give to messages (message id, correlation id, trace id, span id), packed as in a row.

Text that was not UTF-8 on the wire is U+FFFD in events. Compiled (message_ids.pxd).
"""

from warrenmq.events import memory


def pack_message_ids(
    source_uid: int,
    message_id: bytes | None,
    correlation_id: bytes | None,
    trace_id: bytes | None,
    span_id: bytes | None,
) -> bytes | None:
    """Pack the ids of a message and the uid of its source (0: none); None if it has neither."""
    if source_uid == 0 and message_id is None and correlation_id is None and trace_id is None and span_id is None:
        return None
    message_id, correlation_id, trace_id, span_id = (
        clean_text(message_id),
        clean_text(correlation_id),
        clean_text(trace_id),
        clean_text(span_id),
    )
    size = 24 + _size_of(message_id) + _size_of(correlation_id) + _size_of(trace_id) + _size_of(span_id)
    packed = memory.new_bytes(size)
    out = memory.writable(packed)
    memory.store_64(out, 0, source_uid)
    at = _store_id(out, 8, message_id)
    at = _store_id(out, at, correlation_id)
    at = _store_id(out, at, trace_id)
    _store_id(out, at, span_id)
    return memory.finished(packed)


def clean_name(name: str) -> str:
    """Return the name as events show it, without surrogates."""
    if name.isascii():
        return name
    return "".join(["\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in name])


def clean_text(text: bytes | None) -> bytes | None:
    """Return the text as events show it: valid UTF-8."""
    if text is None or memory.is_ascii(text):
        return text
    return text.decode("utf-8", "replace").encode()


def _size_of(text: bytes | None) -> int:
    return 0 if text is None else len(text)


def _store_id(out: memory.Pointer, at: int, text: bytes | None) -> int:
    """Store the size plus 1 (0: null) and the text; return where it ends."""
    if text is None:
        memory.store_32(out, at, 0)
        return at + 4
    size = len(text)
    memory.store_32(out, at, size + 1)
    memory.copy(out, at + 4, text, 0, size)
    return at + 4 + size
