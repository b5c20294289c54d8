-- Which files must exist. docs/formats/catalog.md says what each column holds.

CREATE TABLE files (
    place        INTEGER PRIMARY KEY,
    folder       TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    generation   INTEGER NOT NULL,
    last         INTEGER NOT NULL,
    size         INTEGER NOT NULL,
    count        INTEGER NOT NULL,
    transient    INTEGER NOT NULL,
    alive        INTEGER NOT NULL,
    marks        INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    synced_last  INTEGER NOT NULL,
    synced_count INTEGER NOT NULL,
    checksum     INTEGER NOT NULL
);
CREATE UNIQUE INDEX files_key ON files (folder, name);

-- -1 in a folder that held data before there was a manifest: what it must hold is not known until the next checkpoint.
INSERT INTO meta (name, value, checksum)
    SELECT 'released_epoch', -(value > 0), CASE WHEN value > 0 THEN 2097410138 ELSE 2746798265 END
    FROM meta WHERE name = 'applied_epoch';
