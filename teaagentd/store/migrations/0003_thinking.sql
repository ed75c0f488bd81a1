-- Thinking as its provider signed it, in the provider's own form: sent back whole or not at all.
ALTER TABLE messages ADD COLUMN thinking TEXT;

-- Of the input: what was written to the provider's cache. NULL is unknown, or not counted there.
ALTER TABLE usage ADD COLUMN cache_write_tokens INTEGER;
