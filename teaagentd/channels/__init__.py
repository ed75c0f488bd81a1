"""Channels: ways in and out of the daemon, one per file, and what delivers over them."""
