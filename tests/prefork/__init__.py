"""Jobs whose ranks are forked from a process that has imported NumPy, torch and Keras already.

A fresh interpreter spends a second in imports before it does anything: most of the time of most tests. `server.py` does
that once; `client.py` is what `hocket.spawn` starts its ranks by in `make test`. In `make test-full` ranks are fresh
interpreters, as a user's are.
"""
