"""HTTP over read-only views of the broker: health, metrics; the management API and pages grow here."""
