-- What the owner is told of without having asked: one row for each cause, told once.
CREATE TABLE alerts (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL,
    count INTEGER NOT NULL DEFAULT 1,
    raised_at INTEGER NOT NULL,
    told_at INTEGER,
    cleared_at INTEGER
) STRICT;

-- A cause is open once at most.
CREATE UNIQUE INDEX alerts_open ON alerts (kind, subject) WHERE cleared_at IS NULL;

-- External ids of messages that were deleted: what is sent again is not taken for new.
CREATE TABLE forgotten (
    digest BLOB PRIMARY KEY,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
