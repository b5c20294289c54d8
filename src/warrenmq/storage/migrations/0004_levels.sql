-- Priorities of queues above the lowest: each has a number of its own. docs/formats/catalog.md says what each column holds.

CREATE TABLE levels (
    place    INTEGER PRIMARY KEY,
    vhost    TEXT    NOT NULL,
    queue    TEXT    NOT NULL,
    level    TEXT    NOT NULL,
    id       INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE UNIQUE INDEX levels_key ON levels (vhost, queue, level);
