"""``python -m homophily`` is the ``homophily`` command."""

from homophily.cli import main

if __name__ == "__main__":
    main()
