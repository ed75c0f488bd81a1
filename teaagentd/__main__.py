"""`teaagentd` and `python -m teaagentd`."""

from teaagentd.cli.app import main

if __name__ == "__main__":
    main()
