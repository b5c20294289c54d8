"""Count: events of the log to partial aggregates, in the process that reads them."""
