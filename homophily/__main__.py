"""Entry point of ``python -m homophily``, which is the same as the ``homophily`` command."""

from homophily.cli.app import main

if __name__ == "__main__":
    main()
