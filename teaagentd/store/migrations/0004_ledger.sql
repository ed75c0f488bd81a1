-- What requests may cost that were begun, and whose end is not booked: counted as spent.
CREATE TABLE reservations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never given twice: a booking that is repeated is known
    turn INTEGER REFERENCES turns (number),
    session INTEGER REFERENCES sessions (id),
    generation INTEGER,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    purpose TEXT NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost INTEGER,                           -- billionths of a US dollar; NULL is unknown
    started_at INTEGER NOT NULL
) STRICT;

ALTER TABLE usage ADD COLUMN session INTEGER REFERENCES sessions (id);
ALTER TABLE usage ADD COLUMN generation INTEGER;
ALTER TABLE usage ADD COLUMN cost INTEGER;  -- billionths of a US dollar; NULL is unknown
ALTER TABLE usage ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0 CHECK (estimated IN (0, 1));

UPDATE usage SET
    session = (SELECT session FROM turns WHERE number = usage.turn),
    generation = (SELECT generation FROM turns WHERE number = usage.turn);

-- Sums for the caps are read from these alone.
CREATE INDEX usage_time ON usage (started_at, cost, input_tokens, output_tokens);
CREATE INDEX usage_session ON usage (session, generation, cost, input_tokens, output_tokens);
