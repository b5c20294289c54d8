-- Virtual hosts and what is durable in them. docs/formats/catalog.md says what each column holds.
--
-- No foreign keys: an exchange goes before its bindings within one epoch, and a log that lost an epoch may name what
-- is not there. An epoch that is safe in the log must never be refused here; CatalogFile.check finds what does not fit.

PRAGMA application_id = 0x5752434C; -- "WRCL"

CREATE TABLE meta (
    name     TEXT    NOT NULL PRIMARY KEY,
    value    INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
INSERT INTO meta (name, value, checksum) VALUES ('applied_epoch', 0, 1741055084), ('next_queue_id', 1, 283996735);

CREATE TABLE vhosts (
    place    INTEGER PRIMARY KEY,
    name     TEXT    NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE UNIQUE INDEX vhosts_key ON vhosts (name);

CREATE TABLE exchanges (
    place       INTEGER PRIMARY KEY,
    vhost       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    type        TEXT    NOT NULL,
    auto_delete INTEGER NOT NULL,
    internal    INTEGER NOT NULL,
    arguments   BLOB    NOT NULL,
    checksum    INTEGER NOT NULL
);
CREATE UNIQUE INDEX exchanges_key ON exchanges (vhost, name);

CREATE TABLE queues (
    place       INTEGER PRIMARY KEY,
    vhost       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    id          INTEGER NOT NULL,
    auto_delete INTEGER NOT NULL,
    arguments   BLOB    NOT NULL,
    checksum    INTEGER NOT NULL
);
CREATE UNIQUE INDEX queues_key ON queues (vhost, name);

CREATE TABLE bindings (
    place            INTEGER PRIMARY KEY,
    vhost            TEXT    NOT NULL,
    source           TEXT    NOT NULL,
    destination_type TEXT    NOT NULL,
    destination      TEXT    NOT NULL,
    routing_key      TEXT    NOT NULL,
    arguments_key    TEXT    NOT NULL,
    arguments        BLOB    NOT NULL,
    checksum         INTEGER NOT NULL
);
CREATE UNIQUE INDEX bindings_key
    ON bindings (vhost, source, destination_type, destination, routing_key, arguments_key);
