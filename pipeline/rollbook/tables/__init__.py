"""Typed artifacts, and the only place that opens one."""
