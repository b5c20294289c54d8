-- Which messages' events are kept. docs/formats/catalog.md says what each column holds.

CREATE TABLE trace_rules (
    place     INTEGER PRIMARY KEY,
    name      TEXT    NOT NULL,
    arguments BLOB    NOT NULL,
    checksum  INTEGER NOT NULL
);
CREATE UNIQUE INDEX trace_rules_key ON trace_rules (name);
