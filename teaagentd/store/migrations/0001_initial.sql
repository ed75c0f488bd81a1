-- Times are milliseconds since the epoch, UTC. Text compares by its bytes.

CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    uid TEXT NOT NULL
) STRICT;

INSERT INTO store (id, uid) VALUES (1, lower(hex(randomblob(8))));

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    generation INTEGER NOT NULL DEFAULT 1,
    live_from INTEGER NOT NULL DEFAULT 0,   -- messages from this place on are the live history
    listed INTEGER NOT NULL CHECK (listed IN (0, 1)),
    created_at INTEGER NOT NULL,
    active_at INTEGER NOT NULL
) STRICT;

CREATE TABLE turns (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    session INTEGER NOT NULL REFERENCES sessions (id),
    generation INTEGER NOT NULL,
    origin TEXT NOT NULL,
    parent TEXT,
    deliver_channel TEXT,
    deliver_chat TEXT,
    state TEXT NOT NULL CHECK (state IN ('running', 'done')),
    outcome TEXT CHECK ((outcome IS NULL) = (state = 'running')),
    attempt INTEGER NOT NULL DEFAULT 1,
    parked INTEGER NOT NULL DEFAULT 0 CHECK (parked IN (0, 1)),
    started_at INTEGER NOT NULL,
    ended_at INTEGER
) STRICT;

-- At most one running turn for each session, whatever the way in.
CREATE UNIQUE INDEX turns_running ON turns (session) WHERE state = 'running';

CREATE TABLE outbox (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (id),
    turn INTEGER REFERENCES turns (number),
    channel TEXT NOT NULL,
    chat_id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('final', 'interim', 'notice')),
    content TEXT NOT NULL,
    message_ids TEXT NOT NULL,              -- the inbox rows whose answer this is
    state TEXT NOT NULL CHECK (state IN ('available', 'pending', 'sent', 'dead')),
    reason TEXT,                            -- why it is dead
    not_before INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    settled_at INTEGER
) STRICT;

CREATE INDEX outbox_session ON outbox (session, id);
CREATE INDEX outbox_pending ON outbox (channel, id) WHERE state = 'pending';
CREATE INDEX outbox_notices ON outbox (turn) WHERE kind = 'notice';
CREATE INDEX outbox_dead ON outbox (id) WHERE state = 'dead';

CREATE TABLE parts (
    outbox INTEGER NOT NULL REFERENCES outbox (id),
    position INTEGER NOT NULL,
    content TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'sent')),
    repeats INTEGER NOT NULL DEFAULT 0,     -- sends after one whose outcome is unknown
    external_id TEXT,
    PRIMARY KEY (outbox, position)
) STRICT;

CREATE TABLE inbox (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (id),
    kind TEXT NOT NULL CHECK (kind IN ('message', 'command')),
    channel TEXT NOT NULL,
    chat_id TEXT NOT NULL,
    sender_id TEXT,
    external_id TEXT,
    content TEXT NOT NULL,
    attachments TEXT,
    state TEXT NOT NULL CHECK (state IN ('pending', 'claimed', 'done', 'dead', 'retried')),
    turn INTEGER REFERENCES turns (number),
    answer INTEGER REFERENCES outbox (id),  -- the one text that answers it
    retry_of INTEGER REFERENCES inbox (id),
    accepted_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX inbox_external ON inbox (channel, chat_id, external_id)
    WHERE external_id IS NOT NULL;
CREATE INDEX inbox_pending ON inbox (session, id) WHERE state = 'pending';
CREATE INDEX inbox_dead ON inbox (id) WHERE state = 'dead';
CREATE INDEX inbox_turn ON inbox (turn) WHERE turn IS NOT NULL;
CREATE UNIQUE INDEX inbox_retry ON inbox (retry_of) WHERE retry_of IS NOT NULL;

CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (id),
    turn INTEGER NOT NULL REFERENCES turns (number),
    place INTEGER NOT NULL,                 -- a tool message has that of its call's message
    position INTEGER NOT NULL,              -- 0, or 1 + the index of the call it answers
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'tool')),
    content TEXT NOT NULL,
    note TEXT,
    inbox INTEGER REFERENCES inbox (id),
    tool_calls TEXT,
    tool_call_id TEXT,
    name TEXT,
    raw TEXT,
    reasoning TEXT,
    model TEXT,
    attachments TEXT,
    created_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX messages_order ON messages (session, place, position);

CREATE TABLE calls (
    id INTEGER PRIMARY KEY,
    turn INTEGER NOT NULL REFERENCES turns (number),
    place INTEGER NOT NULL,
    position INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('planned', 'started', 'finished')),
    status TEXT,
    started_at INTEGER,
    finished_at INTEGER
) STRICT;

CREATE INDEX calls_open ON calls (turn, position) WHERE state <> 'finished';

CREATE TABLE usage (
    id INTEGER PRIMARY KEY,
    turn INTEGER REFERENCES turns (number),
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    purpose TEXT NOT NULL,
    input_tokens INTEGER,                   -- NULL is unknown, not zero
    cached_tokens INTEGER,
    output_tokens INTEGER,
    reasoning_tokens INTEGER,
    error TEXT,
    started_at INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX usage_turn ON usage (turn) WHERE turn IS NOT NULL;
