"""Runs the jobs over the event log: once over a range of time, or for as long as events come."""
