"""DVC's files and traps: lock files, the cache, running steps, the fork server."""
