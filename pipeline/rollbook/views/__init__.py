"""What only looks at a run: pages, checks, comparisons, lineage, MLflow, exports."""
