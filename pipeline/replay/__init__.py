"""Replay: a finished step run again elsewhere, from what was stored of it, and compared with what it made then.

step = its entry in a lock file (`steps.py`); inputs, code and settings as recorded come into a scratch folder
(`stored.py`, `code_trees.py`, `settings.py`); its program runs there (`running.py`); every output is compared
(`comparing.py`, `tables.py`, `weights.py`) beside what differs around it (`environment.py`); `verdict.py` is what
comes out. Nothing in the workspace changes.
"""
