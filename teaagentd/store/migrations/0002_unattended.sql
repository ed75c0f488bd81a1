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

-- By these a row that is deleted finds what refers to it.
CREATE INDEX messages_inbox ON messages (inbox) WHERE inbox IS NOT NULL;
CREATE INDEX inbox_answer ON inbox (answer) WHERE answer IS NOT NULL;

-- The first files lack it.
CREATE INDEX IF NOT EXISTS outbox_notices ON outbox (turn) WHERE kind = 'notice';

-- The day on which old rows were looked for last, to tell a clock that jumped from time that passed.
ALTER TABLE store ADD COLUMN swept_at INTEGER;
