"""Stage programs, one file per stage. `python -m stages.<name> --iteration <key>`; DVC runs them."""
