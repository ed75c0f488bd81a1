BEGIN TRANSACTION;
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
INSERT INTO "calls" VALUES(1,1,2,1,'call-1','current_time','finished','ok',1700000004000,1700000005000);
INSERT INTO "calls" VALUES(2,3,2,1,'call-1','current_time','finished','ok',1700000013000,1700000014000);
INSERT INTO "calls" VALUES(3,5,2,1,'call-9','current_time','started',NULL,1700000028000,NULL);
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
INSERT INTO "inbox" VALUES(1,1,'message','api','anna',NULL,'e0','My name is Anna.',NULL,'done',1,2,NULL,1700000001000);
INSERT INTO "inbox" VALUES(2,1,'message','api','anna',NULL,'e1','Grüße und 🍵',NULL,'done',2,3,NULL,1700000007000);
INSERT INTO "inbox" VALUES(3,2,'message','telegram','7','bob','t1','what time?',NULL,'done',3,5,NULL,1700000010000);
INSERT INTO "inbox" VALUES(4,3,'message','api','bad',NULL,NULL,'poison',NULL,'dead',4,6,NULL,1700000020000);
INSERT INTO "inbox" VALUES(5,4,'message','api','carl',NULL,NULL,'unfinished',NULL,'claimed',5,NULL,NULL,1700000025000);
INSERT INTO "inbox" VALUES(6,5,'message','api','dora',NULL,'d1','waiting',NULL,'pending',NULL,NULL,NULL,1700000029000);
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
INSERT INTO "messages" VALUES(1,1,1,1,0,'user','My name is Anna.','[Tue 2023-11-14 22:13 UTC, via api]',1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000002000);
INSERT INTO "messages" VALUES(2,1,1,2,0,'assistant','I look.',NULL,NULL,'[{"id":"call-1","name":"current_time","arguments":{}}]',NULL,NULL,NULL,NULL,NULL,NULL,1700000003000);
INSERT INTO "messages" VALUES(3,1,1,2,1,'tool','It is late.',NULL,NULL,NULL,'call-1','current_time',NULL,NULL,NULL,NULL,1700000005000);
INSERT INTO "messages" VALUES(4,1,1,3,0,'assistant','Hello Anna.',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000006000);
INSERT INTO "messages" VALUES(5,1,2,4,0,'user','Grüße und 🍵','[Tue 2023-11-14 22:13 UTC, via api]',2,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000008000);
INSERT INTO "messages" VALUES(6,1,2,5,0,'assistant','Grüße zurück.',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000009000);
INSERT INTO "messages" VALUES(7,2,3,1,0,'user','what time?','[Tue 2023-11-14 22:13 UTC, via telegram]',3,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000011000);
INSERT INTO "messages" VALUES(8,2,3,2,0,'assistant','I look.',NULL,NULL,'[{"id":"call-1","name":"current_time","arguments":{}}]',NULL,NULL,NULL,NULL,NULL,NULL,1700000012000);
INSERT INTO "messages" VALUES(9,2,3,2,1,'tool','It is late.',NULL,NULL,NULL,'call-1','current_time',NULL,NULL,NULL,NULL,1700000014000);
INSERT INTO "messages" VALUES(10,2,3,3,0,'assistant','late',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000015000);
INSERT INTO "messages" VALUES(11,3,4,1,0,'user','poison','[Tue 2023-11-14 22:13 UTC, via api]',4,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000021000);
INSERT INTO "messages" VALUES(12,3,4,2,0,'assistant','I gave up.',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000024000);
INSERT INTO "messages" VALUES(13,4,5,1,0,'user','unfinished','[Tue 2023-11-14 22:13 UTC, via api]',5,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1700000026000);
INSERT INTO "messages" VALUES(14,4,5,2,0,'assistant','',NULL,NULL,'[{"id":"call-9","name":"current_time","arguments":{}}]',NULL,NULL,NULL,NULL,NULL,NULL,1700000027000);
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
INSERT INTO "outbox" VALUES(1,1,1,'api','anna','notice','I look.','[]','available',NULL,0,1700000003000,NULL);
INSERT INTO "outbox" VALUES(2,1,1,'api','anna','final','Hello Anna.','[1]','available',NULL,0,1700000006000,NULL);
INSERT INTO "outbox" VALUES(3,1,2,'api','anna','final','Grüße zurück.','[2]','available',NULL,0,1700000009000,NULL);
INSERT INTO "outbox" VALUES(4,2,3,'telegram','7','notice','I look.','[]','pending',NULL,0,1700000012000,NULL);
INSERT INTO "outbox" VALUES(5,2,3,'telegram','7','final','late','[3]','pending',NULL,0,1700000015000,NULL);
INSERT INTO "outbox" VALUES(6,3,4,'api','bad','final','I gave up.','[4]','available',NULL,0,1700000024000,NULL);
CREATE TABLE parts (
    outbox INTEGER NOT NULL REFERENCES outbox (id),
    position INTEGER NOT NULL,
    content TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'sent')),
    repeats INTEGER NOT NULL DEFAULT 0,     -- sends after one whose outcome is unknown
    external_id TEXT,
    PRIMARY KEY (outbox, position)
) STRICT;
INSERT INTO "parts" VALUES(5,0,'la','sent',0,'x');
INSERT INTO "parts" VALUES(5,1,'te','sending',0,NULL);
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    generation INTEGER NOT NULL DEFAULT 1,
    live_from INTEGER NOT NULL DEFAULT 0,   -- messages from this place on are the live history
    listed INTEGER NOT NULL CHECK (listed IN (0, 1)),
    created_at INTEGER NOT NULL,
    active_at INTEGER NOT NULL
) STRICT;
INSERT INTO "sessions" VALUES(1,'api:anna',1,0,1,1700000001000,1700000008000);
INSERT INTO "sessions" VALUES(2,'telegram:7',1,0,1,1700000010000,1700000011000);
INSERT INTO "sessions" VALUES(3,'api:bad',1,0,1,1700000020000,1700000021000);
INSERT INTO "sessions" VALUES(4,'api:carl',1,0,1,1700000025000,1700000026000);
INSERT INTO "sessions" VALUES(5,'api:dora',1,0,1,1700000029000,1700000029000);
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    uid TEXT NOT NULL
) STRICT;
INSERT INTO "store" VALUES(1,'220854d72391a62f');
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
INSERT INTO "turns" VALUES(1,'anna-0',1,1,'bus',NULL,NULL,NULL,'done','answered',1,0,1700000002000,1700000006000);
INSERT INTO "turns" VALUES(2,'anna-1',1,1,'bus',NULL,NULL,NULL,'done','answered',1,0,1700000008000,1700000009000);
INSERT INTO "turns" VALUES(3,'box-1',2,1,'bus',NULL,NULL,NULL,'done','answered',1,0,1700000011000,1700000015000);
INSERT INTO "turns" VALUES(4,'poison',3,1,'bus',NULL,NULL,NULL,'done','failed',3,0,1700000021000,1700000024000);
INSERT INTO "turns" VALUES(5,'unfinished',4,1,'bus',NULL,NULL,NULL,'running',NULL,1,0,1700000026000,NULL);
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
INSERT INTO "usage" VALUES(1,1,'scripted','m','turn',10,0,5,NULL,NULL,1,5);
INSERT INTO "usage" VALUES(2,1,'scripted','m','turn',10,0,5,NULL,NULL,1,5);
INSERT INTO "usage" VALUES(3,2,'scripted','m','turn',10,0,5,NULL,NULL,1,5);
INSERT INTO "usage" VALUES(4,3,'scripted','m','turn',10,0,5,NULL,NULL,1,5);
INSERT INTO "usage" VALUES(5,3,'scripted','m','turn',10,0,5,NULL,NULL,1,5);
INSERT INTO "usage" VALUES(6,5,'scripted','m','turn',10,0,5,NULL,NULL,1,5);
CREATE UNIQUE INDEX turns_running ON turns (session) WHERE state = 'running';
CREATE INDEX outbox_session ON outbox (session, id);
CREATE INDEX outbox_pending ON outbox (channel, id) WHERE state = 'pending';
CREATE INDEX outbox_dead ON outbox (id) WHERE state = 'dead';
CREATE UNIQUE INDEX inbox_external ON inbox (channel, chat_id, external_id)
    WHERE external_id IS NOT NULL;
CREATE INDEX inbox_pending ON inbox (session, id) WHERE state = 'pending';
CREATE INDEX inbox_dead ON inbox (id) WHERE state = 'dead';
CREATE INDEX inbox_turn ON inbox (turn) WHERE turn IS NOT NULL;
CREATE UNIQUE INDEX inbox_retry ON inbox (retry_of) WHERE retry_of IS NOT NULL;
CREATE UNIQUE INDEX messages_order ON messages (session, place, position);
CREATE INDEX calls_open ON calls (turn, position) WHERE state <> 'finished';
CREATE INDEX usage_turn ON usage (turn) WHERE turn IS NOT NULL;
COMMIT;
