"""The menu: what users add to, one file each, and what its files share."""
