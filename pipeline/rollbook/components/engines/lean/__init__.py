"""What needs torch to be imported, so it is out of the listing of engines that `check` looks through without it."""
