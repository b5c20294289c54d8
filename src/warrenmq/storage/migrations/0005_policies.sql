-- Policies and operator policies. docs/formats/catalog.md says what each column holds.

CREATE TABLE policies (
    place     INTEGER PRIMARY KEY,
    vhost     TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    arguments BLOB    NOT NULL,
    checksum  INTEGER NOT NULL
);
CREATE UNIQUE INDEX policies_key ON policies (vhost, name);

CREATE TABLE operator_policies (
    place     INTEGER PRIMARY KEY,
    vhost     TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    arguments BLOB    NOT NULL,
    checksum  INTEGER NOT NULL
);
CREATE UNIQUE INDEX operator_policies_key ON operator_policies (vhost, name);
