"""The command line: one file for each group of verbs, imported when its verb is called."""
