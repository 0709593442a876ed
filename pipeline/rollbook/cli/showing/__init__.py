"""Parts of `rollbook show`: facts drawn on a terminal."""
