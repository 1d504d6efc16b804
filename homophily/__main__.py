"""``python -m homophily`` is the ``homophily`` command."""

from homophily.cli.app import main

if __name__ == "__main__":
    main()
