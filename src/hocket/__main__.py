"""``python -m hocket`` is the ``hocket`` command."""

from hocket.cli._command import main

if __name__ == "__main__":
    main()
