"""What goes wrong for a user of the source or the sink. The texts say what to do next; Spark shows them as they are."""


class PipelineError(Exception):
    """The root of what is raised here for a reason of its own."""


class BadOption(PipelineError, ValueError):
    """An option that is unknown, missing, or cannot mean anything."""


class NotAStream(PipelineError):
    """What was asked for does not exist, or is a classic queue."""


class BrokerUnreachable(PipelineError, ConnectionError):
    """The broker did not answer for longer than `retryTimeout`."""


class DataLost(PipelineError):
    """Records of a range are gone: removed by the stream's limits, or the stream was deleted and made anew."""


class BadPayload(PipelineError, ValueError):
    """The body of a message is not what `payload` says it is."""
