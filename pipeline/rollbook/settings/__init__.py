"""params.yaml, typed: recipes, presets, examples, sealed iterations."""
