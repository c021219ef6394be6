"""The environment every test starts from, whatever started pytest."""

import signal


def pytest_configure() -> None:
    """Ctrl-C works in the processes that tests start.

    A shell without job control starts its background jobs with SIGINT ignored, every process below inherits that, and
    Python then installs no handler: `make test &` would fail in all tests that interrupt something.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
