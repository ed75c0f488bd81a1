-- Which of the configured models is asked first, by its name: for one conversation, or for all.
ALTER TABLE sessions ADD COLUMN model TEXT;
ALTER TABLE store ADD COLUMN model TEXT;
