"""What only a GPU can show, and the same on processors: `make gpu-check`, `make gpu-check DEVICE=cpu`."""
