"""Makes `python -m rolltrace` the command line."""

from rolltrace.cli import main

if __name__ == "__main__":
    main()
