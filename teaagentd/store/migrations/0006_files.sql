-- Which files are still named by a message, without reading every message.
CREATE INDEX messages_files ON messages (id) WHERE attachments IS NOT NULL;
CREATE INDEX inbox_files ON inbox (id) WHERE attachments IS NOT NULL;
