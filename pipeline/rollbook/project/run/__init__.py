"""The one read model of a run; see `rollbook.project.run.run`."""
