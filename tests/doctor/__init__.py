"""Runs of the embedded policy, healthy ones and such that one setting has spoiled, and what the doctor says."""
