"""Run: the analysis of the event log, once over a time range or for as long as events come."""
