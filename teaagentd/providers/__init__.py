"""The model servers. Each adapter is one module behind one entry point, imported when configured."""
