"""Parts of `rollbook replay`."""
