"""Two policies side by side; see `rollbook.views.compare.comparison`."""
