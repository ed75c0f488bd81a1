"""A personal assistant that runs as a daemon: a durable bus, one live turn per conversation."""

__version__ = "0.1.0"
