"""The model servers: one adapter per module, behind one entry point, imported when configured."""
