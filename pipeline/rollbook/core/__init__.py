"""Errors, components, ids, hashes, files and processes: knows no RL and no DVC."""
