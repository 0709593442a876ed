"""Parts of `rollbook rescore`: asking now, asking as cached steps, and what is shown of the answers."""

COMMAND = "rollbook rescore"
