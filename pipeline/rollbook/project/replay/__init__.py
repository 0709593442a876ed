"""Replay: a finished step run again elsewhere, from what was stored of it, and compared with what it made then.

step = its entry in a lock file (`steps.py`); inputs, code and settings as recorded come into a scratch folder
(`stored.py`, `code_trees.py`, `settings.py`, `choosing.py`), and what judges replied then (`replies.py`); its program
runs there (`running.py`, `programs.py`); every output is compared (`judging.py`, `differing.py`, `tables.py`,
`weights.py`, `distances.py`) beside what differs around it (`environment.py`); `verdict.py` is what comes out, and
`marks.py` keeps it for MLflow. Nothing in the workspace changes, and nobody is asked.
"""
