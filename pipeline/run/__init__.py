"""The one read model of a run; see `pipeline.run.run`."""
